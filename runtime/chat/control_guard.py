"""Keeps text that spells a control token from becoming one.

Where a control token is spelt inside a conversation's own strings, a mark that nobody can guess is put into it before
the template runs. In the rendered text an unmarked spelling is then the template's own and a marked one is content.
The marks travel with the strings through trimming, splitting, joining and `tojson`.

Limits: a template that compares or measures such a string sees the marks, and one that cuts a string and joins its
parts anew could make a control token of harmless parts. If a template loses a mark (by escaping it, say), the rendering
is done again with a backslash in each spelling, so that the content is changed but no control token appears.
"""

import itertools
import re
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.tokenizer import Encoder, Int32Array, Tokenizer
from deeproot.runtime.chat.vocabulary import Added

_MARK_START, _MARK_END, _ALIAS_START, _ALIAS_END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"  # no characters
_BREAK = "\\"
Transform = Callable[[str, bool], str]
"""Of a string and whether it is the model's own words (an assistant's content): what to render in its place."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template made of a conversation whose strings were marked."""

    text: str
    marked: bool
    """Whether `text` holds marks, or backslashes in their place."""


class ControlGuard:
    """Marks and encodes for one tokenizer and one set of control tokens.

    Those that are not special (`<think>` and the like, which a decoded answer shows) are left alone in what the model
    wrote: it wrote them as tokens, and its words must come back as the same ids.
    """

    def __init__(self, tokenizer: Tokenizer, control_ids: Collection[int]) -> None:
        # Unguessable, so that no content can hold a mark or an alias. They never reach the ids. Digits only, so that
        # a template's change of case does not touch them.
        self._nonce = str(secrets.randbits(64))
        self._mark = f"{_MARK_START}{self._nonce}{_MARK_END}"
        self._tokenizer = tokenizer
        controls = [entry for entry in tokenizer.added if entry.token_id in control_ids]
        self._aliases = {
            entry.text: f"{_ALIAS_START}{self._nonce}:{entry.token_id}{_ALIAS_END}" for entry in controls
        }
        self._alias_by_id = {entry.token_id: self._aliases[entry.text] for entry in controls}
        self._spelt = _any_of(self._aliases)
        self._spelt_special = _any_of([entry.text for entry in controls if entry.special])
        self._seams = frozenset(entry.text for entry in controls if _is_seam(entry))
        """Control tokens at which text may be cut before it is tokenised."""
        self._alias = _any_of(list(self._alias_by_id.values()))
        self._seam_aliases = frozenset(self._aliases[text] for text in self._seams)
        self._prefixes = _prefixes(self._aliases)
        self._longest = max(map(len, self._aliases), default=0)
        spellings = [(self._aliases.get(entry.text, entry.text), entry) for entry in tokenizer.added]
        self._encode_aliased: Encoder = tokenizer.encoder(spellings)

    def marked(self, text: str, by_model: bool) -> str:
        """`text` with a mark inside every control token that it spells, and after a part of one that it ends with."""
        return self._interrupted(text, by_model, self._mark)

    def broken(self, text: str, by_model: bool) -> str:
        """`text` with a backslash in those places."""
        return self._interrupted(text, by_model, _BREAK)

    def encode(self, render: Callable[[Transform], str]) -> Int32Array:
        """`[num_tokens]` ids of a rendering. `render(transform)` runs the template on transformed strings."""
        return self.encode_rendering(self.rendering(render))

    def rendering(self, render: Callable[[Transform], str]) -> Rendering:
        """The text of which `encode_rendering` and `spans` make something. `render` as in `encode`."""
        rendered = render(self.marked)
        if not self._num_traces(rendered):
            return Rendering(rendered, marked=False)
        broken = render(self.broken)
        if self._seen_beside_marks(rendered) != self._seen_beside_marks(broken):
            rendered = broken
        return Rendering(rendered, marked=True)

    def encode_rendering(
        self, rendering: Rendering, memory: PieceMemory | None = None, namespace: bytes = b""
    ) -> Int32Array:
        """`[num_tokens]` ids. `memory`: of the pieces of other renderings of that namespace."""
        if rendering.marked:
            return self.encode_spans(self.spans(rendering), memory, namespace)
        if memory is None:
            return self._encode_plain(rendering.text)
        pieces = _pieces(rendering.text, self._spelt, self._seams)
        return memory.encode(b"plain" + namespace, pieces, self._encode_plain)

    def spans(self, rendering: Rendering) -> str:
        """The rendering with every control token of the template's in a form that no content can spell, so that
        equal texts mean equal sequences of control tokens and content."""
        aliased = self._spelt.sub(lambda found: self._aliases[found[0]], rendering.text)
        return aliased.replace(self._mark, "")

    def encode_spans(
        self, spans: str, memory: PieceMemory | None = None, namespace: bytes = b""
    ) -> Int32Array:
        """`[num_tokens]` ids of what `spans` returned, or of a piece of it. `memory` as in `encode_rendering`."""
        if memory is None:
            return self._encode_aliased(spans)
        pieces = _pieces(spans, self._alias, self._seam_aliases)
        return memory.encode(b"spans" + namespace, pieces, self._encode_aliased)

    def alias_of(self, token_id: int) -> str | None:
        """How `spans` writes a control token; None for every other token."""
        return self._alias_by_id.get(token_id)

    def _encode_plain(self, text: str) -> Int32Array:
        return self._tokenizer.encode(text, parse_special=True)

    def _num_traces(self, text: str) -> int:
        """How many parts of marks, whole or damaged, a text holds (or characters that look like them)."""
        return text.count(_MARK_START) + text.count(_MARK_END) + text.count(self._nonce)

    def _seen_beside_marks(self, text: str) -> tuple[int, int]:
        """Unmarked spellings and damaged marks: the same with marks and without, unless a mark was lost."""
        return len(self._spelt.findall(text)), self._num_traces(text.replace(self._mark, ""))

    def _interrupted(self, text: str, by_model: bool, interruption: str) -> str:
        spelt = self._spelt_special if by_model else self._spelt
        text = spelt.sub(lambda found: found[0][0] + interruption + found[0][1:], text)
        # A part of one at the very end could be completed by whatever the template puts next.
        stem = text.rstrip()
        if stem[-self._longest :].endswith(self._prefixes.get(stem[-1:], ())):
            return stem + interruption + text[len(stem) :]
        return text


def transformed(value: Any, transform: Transform, by_model: bool) -> Any:
    """A copy of JSON-like data with every string, keys included, transformed."""
    if isinstance(value, str):
        return transform(value, by_model)
    if isinstance(value, dict):
        return {transform(str(k), by_model): transformed(v, transform, by_model) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [transformed(item, transform, by_model) for item in value]
    return value


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    # Longest first, as the tokenizer prefers them.
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _is_seam(entry: Added) -> bool:
    """Whether text before such a token and text from it on give the same ids apart as together: it is found whatever stands
    around it, before anything is normalised, and takes nothing of what stands before it."""
    token = entry.token
    return entry.special and not (token.lstrip or token.single_word or token.normalized)


def _pieces(text: str, controls: re.Pattern[str], seams: Collection[str]) -> list[str]:
    """`text` cut before each control token of `seams`."""
    cuts = [found.start() for found in controls.finditer(text) if found[0] in seams]
    return [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)]) if start < end]


def _prefixes(texts: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Every proper prefix of the texts that is more than a word, by its last letter."""
    by_last: dict[str, set[str]] = {}
    for text in texts:
        for end in range(1, len(text)):
            if not text[:end].isalnum():
                by_last.setdefault(text[end - 1], set()).add(text[:end])
    return {last: tuple(found) for last, found in by_last.items()}
