"""Token ids to text as they come."""

import codecs
from collections.abc import Collection

from deeproot.runtime.chat.tokenizer import Tokenizer


class Detokenizer:
    """Turns one sequence's tokens into text, piece by piece.

    What `feed` and `finish` return, joined, is `tokenizer.decode` of all the ids. A character whose bytes span
    tokens is held back until it is whole. The cost of a token does not depend on how many came before.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        keep: Collection[int] = (),
        continues_text: bool = False,
    ) -> None:
        """`keep`: special ids that are shown all the same (the marks of a tool-call format, say). `continues_text`:
        the tokens follow other text, so a leading space is part of it even where the vocabulary adds one."""
        self._pieces = tokenizer.pieces
        self._skip = tokenizer.special_ids - frozenset(keep) if skip_special_tokens else frozenset()
        self._drop_space = tokenizer.drop_leading_space and not continues_text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_id: int) -> str:
        """The text that is certain now that `token_id` has come; often one word, sometimes nothing."""
        if token_id in self._skip or not 0 <= token_id < len(self._pieces):
            return ""
        piece = self._pieces[token_id]
        if self._drop_space and piece:
            self._drop_space = False
            piece = piece.removeprefix(b" ")
        return self._decoder.decode(piece)

    def finish(self) -> str:
        """What was held back: U+FFFD if the tokens ended inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)
