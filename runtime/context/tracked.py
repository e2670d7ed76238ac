"""A string that knows, character by character, where it came from, through everything that a template does to it."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, SupportsIndex

Kind = Literal["literal", "content", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)
class Owner:
    """Where characters come from. Owners are told apart by identity.

    literal: the template's own words. content: of a message, from segment `segment`. unknown: track was lost.
    """

    kind: Kind
    segment: Hashable = None


LITERAL = Owner("literal")
UNKNOWN = Owner("unknown")

Runs = tuple[tuple[int, Owner], ...]
"""(length, owner) from left to right; lengths are positive and add up to the string's; neighbours differ."""


class Tracked(str):
    """A `str` with owners. Operations that this class does not follow give a plain `str`, which counts as unknown."""

    __slots__ = ("runs",)
    runs: Runs

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> "Tracked":
        return make(str.__add__(self, other), join_runs(self.runs, runs_of(other)))

    def __radd__(self, other: str) -> "Tracked":
        return make(str.__add__(other, self), join_runs(runs_of(other), self.runs))

    def __mul__(self, count: SupportsIndex) -> "Tracked":
        return concat([self] * max(0, count.__index__()))

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self.cut(start, max(start, stop)) if step == 1 else str.__getitem__(self, key)
        at = range(len(self))[key]
        return self.cut(at, at + 1)

    def cut(self, start: int, stop: int) -> "Tracked":
        """Characters `start` to `stop` (0 <= start <= stop <= len)."""
        if start == 0 and stop == len(self):
            return self
        return make(str.__getitem__(self, slice(start, stop)), slice_runs(self.runs, start, stop))

    def strip(self, chars: str | None = None, /) -> "Tracked":
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> "Tracked":
        return self.cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> "Tracked":
        return self.cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> "Tracked":
        return self.cut(len(prefix), len(self)) if prefix and self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> "Tracked":
        return self.cut(0, len(self) - len(suffix)) if suffix and self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        pieces = str.split(self, sep, maxsplit)
        if sep is not None:
            return self._cut_at_separators(pieces, len(sep))
        located: list[str] = []
        at = 0
        for piece in pieces:
            while str.__getitem__(self, at).isspace():
                at += 1
            located.append(self.cut(at, at + len(piece)))
            at += len(piece)
        return located

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        pieces = str.rsplit(self, sep, maxsplit)
        if sep is not None:
            return self._cut_at_separators(pieces, len(sep))
        located: list[str] = []
        end = len(self)
        for piece in reversed(pieces):
            while str.__getitem__(self, end - 1).isspace():
                end -= 1
            located.append(self.cut(end - len(piece), end))
            end -= len(piece)
        return located[::-1]

    def _cut_at_separators(self, pieces: list[str], width: int) -> list[str]:
        """Between two pieces stands exactly one separator of `width` characters."""
        located: list[str] = []
        at = 0
        for piece in pieces:
            located.append(self.cut(at, at + len(piece)))
            at += len(piece) + width
        return located

    def splitlines(self, keepends: bool = False) -> list[str]:
        pieces, at = [], 0
        for kept, line in zip(str.splitlines(self, True), str.splitlines(self, keepends), strict=True):
            pieces.append(self.cut(at, at + len(line)))
            at += len(kept)
        return list(pieces)

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        at = self.find(sep)
        if at < 0:
            return self, make("", ()), make("", ())
        return self.cut(0, at), self.cut(at, at + len(sep)), self.cut(at + len(sep), len(self))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        at = self.rfind(sep)
        if at < 0:
            return make("", ()), make("", ()), self
        return self.cut(0, at), self.cut(at, at + len(sep)), self.cut(at + len(sep), len(self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> "Tracked":
        limit = count.__index__()
        pieces: list[str] = []
        at = 0
        if not old:
            return self._interleave(new, limit)
        while limit != 0 and (found := self.find(old, at)) >= 0:
            pieces += [self.cut(at, found), new]
            at = found + len(old)
            limit -= 1
        return concat([*pieces, self.cut(at, len(self))])

    def _interleave(self, new: str, limit: int) -> "Tracked":
        """What replacing the empty string does: `new` before each character and at the end."""
        slots = len(self) + 1 if limit < 0 else min(limit, len(self) + 1)
        pieces: list[str] = []
        for i in range(len(self)):
            pieces += [new, self.cut(i, i + 1)] if i < slots else [self.cut(i, i + 1)]
        return concat(pieces + ([new] if slots == len(self) + 1 else []))

    def join(self, pieces: Iterable[str], /) -> "Tracked":
        joined: list[str] = []
        for i, piece in enumerate(pieces):
            joined += [self, piece] if i else [piece]
        return concat(joined)

    def lower(self) -> str:
        return self._same_length(str.lower(self))

    def upper(self) -> str:
        return self._same_length(str.upper(self))

    def capitalize(self) -> str:
        return self._same_length(str.capitalize(self))

    def title(self) -> str:
        return self._same_length(str.title(self))

    def _same_length(self, changed: str) -> str:
        """Owners carry over when each character became one; content alone stays content whatever its length."""
        if len(changed) == len(self):
            return make(changed, self.runs)
        if len(self.runs) == 1 and changed:
            return make(changed, ((len(changed), self.runs[0][1]),))
        return changed


def make(text: str, runs: Runs) -> Tracked:
    """`text` with owners; the lengths in `runs` must add up to its length."""
    tracked = str.__new__(Tracked, text)
    tracked.runs = runs
    return tracked


def owned(text: str, owner: Owner) -> Tracked:
    """`text`, all of it from `owner`."""
    return make(text, ((len(text), owner),) if text else ())


def runs_of(text: str) -> Runs:
    """The owners of any string; a plain one is unknown."""
    if isinstance(text, Tracked):
        return text.runs
    return ((len(text), UNKNOWN),) if text else ()


def join_runs(left: Runs, right: Runs) -> Runs:
    """Owners of two strings put together."""
    if not left or not right:
        return left or right
    length, owner = left[-1]
    if owner is right[0][1]:
        return (*left[:-1], (length + right[0][0], owner), *right[1:])
    return left + right


def slice_runs(runs: Runs, start: int, stop: int) -> Runs:
    """Owners of the characters from `start` to `stop`."""
    cut: list[tuple[int, Owner]] = []
    at = 0
    for length, owner in runs:
        begin, end = max(start, at), min(stop, at + length)
        if begin < end:
            cut.append((end - begin, owner))
        at += length
        if at >= stop:
            break
    return tuple(cut)


def concat(pieces: Iterable[Any]) -> Tracked:
    """All pieces put together; what is no string is spelled by `str` and unknown."""
    texts: list[str] = []
    runs: list[tuple[int, Owner]] = []
    for piece in pieces:
        text = piece if isinstance(piece, str) else str(piece)
        texts.append(text)
        for length, owner in runs_of(text):
            if runs and runs[-1][1] is owner:
                runs[-1] = (runs[-1][0] + length, owner)
            else:
                runs.append((length, owner))
    return make("".join(texts), tuple(runs))
