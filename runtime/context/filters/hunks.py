"""Unified diffs with wide context -> the same with a marker for each long run of unchanged lines."""

import re

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult

_HUNK = re.compile(r"@@ -\d+(?:,(\d{1,9}))? \+\d+(?:,(\d{1,9}))? @@")


class HunkFilter:
    """Folds unchanged runs inside hunks to `[n lines unchanged]`, keeping some lines beside each change.

    The hunk header stays, so with the marker's number every line number can still be counted. Only lines that a
    header's counts cover are touched; what looks like a diff and does not add up is left alone.
    """

    name = "hunks"

    def __init__(self, *, context: int = 3, least: int = 5) -> None:
        """`context`: lines kept beside a change. `least`: shortest run that is worth a marker."""
        if context < 0 or least < 1:
            raise ValueError(f"context is {context} and least is {least}; give at least 0 and 1")
        self._context, self._least = context, least

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text with long unchanged runs folded."""
        if "@@ -" not in text:
            return FilterResult(text)
        lines = text.split("\n")
        out: list[str] = []
        drops: list[Drop] = []
        i = 0
        while i < len(lines):
            match = _HUNK.match(lines[i])
            end = _hunk_end(lines, i + 1, match) if match else None
            out.append(lines[i])
            i += 1
            if end is not None:
                self._fold(lines, i, end, out, drops)
                i = end
        return FilterResult("\n".join(out), tuple(drops)) if drops else FilterResult(text)

    def _fold(self, lines: list[str], start: int, end: int, out: list[str], drops: list[Drop]) -> None:
        i = start
        while i < end:
            stop = i
            while stop < end and lines[stop][:1] in (" ", ""):
                stop += 1
            # The run's edge keeps its lines only where it touches a change.
            first = i + (self._context if i > start else 0)
            last = stop - (self._context if stop < end else 0)
            if last - first >= self._least:
                out += [*lines[i:first], f"[{last - first} lines unchanged]", *lines[last:stop]]
                drops.append(Drop("unchanged lines", first + 1, last, 1))
            else:
                out += lines[i:stop]
            if stop < end:
                out.append(lines[stop])
            i = stop + 1


def _hunk_end(lines: list[str], start: int, match: re.Match[str]) -> int | None:
    """Where a hunk ends by its header's counts; None when the lines are no such hunk."""
    old, new = (1 if g is None else int(g) for g in match.groups())
    i = start
    while (old > 0 or new > 0) and i < len(lines):
        mark = lines[i][:1]
        if mark in (" ", ""):
            old, new = old - 1, new - 1
        elif mark == "-":
            old -= 1
        elif mark == "+":
            new -= 1
        elif mark != "\\":
            return None
        i += 1
    return i if old == 0 and new == 0 else None
