"""Rows of a terminal as strings whose index is the column, whatever the width of a character."""

import functools
import re
import unicodedata
from itertools import pairwise

_TABLE_START, _TABLE_END = 0x100000, 0x10FFFD
_STUB = "\x00"  # right half of a wide character; never printable, so no text holds it
_IN_ROW = re.compile("[\U00100000-\U0010fffd]\x00?|\x00")


@functools.cache
def _maybe_odd() -> re.Pattern[str]:
    """Matches a character that may not fill exactly one cell; all beyond the basic plane are suspect."""
    codes = [c for c in range(0x300, 0x10000) if not 0xD800 <= c < 0xE000 and _width(chr(c)) != 1]
    runs: list[list[int]] = []
    for code in codes:
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    ranges = "".join(f"{chr(a)}-{chr(b)}" for a, b in runs)
    return re.compile(f"[{ranges}\U00010000-\U0010ffff]")


@functools.lru_cache(maxsize=4096)
def _width(char: str) -> int:
    """Cells that a printable character fills: 0, 1 or 2."""
    if unicodedata.category(char) in ("Mn", "Me") or char in "\u200b\u200c\u200d":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


class Clusters:
    """Turns text into one character a column and back.

    A unit that is not one cell wide is stood for by a private character; a wide one is followed by a stub.
    """

    def __init__(self) -> None:
        self._units: list[str] = []
        self._numbers: dict[str, int] = {}

    def encode(self, text: str) -> str:
        """Text with controls, to text whose printable runs have one character a column."""
        if text.isascii() or not _maybe_odd().search(text):
            return text
        # A unit begins at each character that fills a cell, and at one that does not behind a control.
        starts = [i for i, char in enumerate(text) if not i or _width(char) or text[i - 1] < " "]
        units = [text[a:b] for a, b in pairwise([*starts, len(text)])]
        return "".join(u if len(u) == 1 and _plain(u) else self._stand_in(u) for u in units)

    def decode(self, row: str) -> str:
        """A row back to text. Half of a wide character that was written over shows as a blank."""
        if not self._units:
            return row
        return _IN_ROW.sub(self._unit, row)

    def _stand_in(self, unit: str) -> str:
        number = self._numbers.get(unit)
        if number is None:
            number = len(self._units)
            if number > _TABLE_END - _TABLE_START:
                return "\ufffd"  # more distinct units than the table holds
            self._units.append(unit)
            self._numbers[unit] = number
        return chr(_TABLE_START + number) + (_STUB if _width(unit[0]) == 2 else "")

    def _unit(self, match: re.Match[str]) -> str:
        cell = match[0]
        if cell == _STUB:
            return " "
        unit = self._units[ord(cell[0]) - _TABLE_START]
        has_stub = len(cell) == 2
        if _width(unit[0]) == 2:
            return unit if has_stub else " "
        return unit + " " * has_stub


def _plain(char: str) -> bool:
    """One cell wide, and not of the range that the table uses."""
    return _width(char) == 1 and not _TABLE_START <= ord(char) <= _TABLE_END
