"""Encoding text so that nothing in it becomes a control token, whatever it spells."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from deeproot.runtime.context.spellings import any_of
from deeproot.runtime.context.tokenizer import AddedToken, TokenIds, Tokenizer, TokenizerError

EMPTY: TokenIds = np.empty(0, dtype=np.int32)


def control_tokens(tokenizer: Tokenizer) -> list[AddedToken]:
    """Added tokens that structure a prompt: all but runs of white space and single characters, which are text."""
    return [token for token in tokenizer.added if len(token.text) > 1 and not token.text.isspace()]


def well_formed(text: str) -> str:
    """`text` with lone surrogates, which no UTF-8 can hold, as U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class TextEncoder:
    """Encodes text in which the given tokens must not appear.

    Where the tokenizer finds one all the same (an added token that is not special, say), the text is cut behind its
    first character and the halves are encoded alone: the ids still decode to the same text.
    """

    def __init__(self, tokenizer: Tokenizer, forbidden: Sequence[AddedToken]) -> None:
        self._tokenizer = tokenizer
        size = max((token.token_id for token in forbidden), default=-1) + 1
        self._forbidden = np.zeros(size, dtype=np.bool_)
        self._forbidden[[token.token_id for token in forbidden]] = True
        self._starts = re.compile(f"(?={any_of(token.text for token in forbidden)})")

    def __call__(self, text: str) -> TokenIds:
        """`[num_tokens]` ids. Raises `TokenizerError` if a forbidden token appears whatever is tried."""
        text = well_formed(text)
        ids = self._tokenizer.encode(text, parse_special=False)
        if not self._has_forbidden(ids):
            return ids
        starts = [found.start() for found in self._starts.finditer(text)]
        for cuts in ([0, *(start + 1 for start in starts), len(text)], list(range(len(text) + 1))):
            pieces = [text[a:b] for a, b in pairwise(cuts) if a < b]
            ids = np.concatenate(
                [EMPTY, *(self._tokenizer.encode(piece, parse_special=False) for piece in pieces)]
            )
            if not self._has_forbidden(ids):
                return ids
        raise TokenizerError(
            "the tokenizer makes a control token of a single character of text; it cannot be used"
        )

    def _has_forbidden(self, ids: TokenIds) -> bool:
        inside = ids[ids < self._forbidden.size]
        return bool(self._forbidden[inside].any())


def swallows(
    tokenizer: Tokenizer, token: AddedToken, encode: Callable[[str], TokenIds]
) -> tuple[bool, bool] | None:
    """Whether a control token takes the white space to its left and right with it.

    None: text beside it is not encoded as it would be alone, so its joints cannot be verified.
    """
    control = np.array([token.token_id], dtype=np.int32)

    def alone(before: str, after: str, left: str, right: str) -> bool:
        whole = tokenizer.encode(before + token.text + after, parse_special=True)
        return np.array_equal(whole, np.concatenate([encode(left), control, encode(right)]))

    if not alone("a", "b", "a", "b"):
        return None
    for left in (False, True):
        for right in (False, True):
            if alone("a \n", " \nb", "a" if left else "a \n", "b" if right else " \nb"):
                return left, right
    return None
