"""Terminal streams as a terminal would show them: colours gone, redrawn lines only in their last form."""

import re

from deeproot.runtime.context.filters.base import Drop, FilterContext, FilterResult
from deeproot.runtime.context.filters.cells import Clusters
from deeproot.runtime.context.filters.screen import CONTROL, Screen

# Where none of these stands, the text is already what a terminal shows.
_ANY_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
# Sequences that move nothing and erase nothing: modes but the alternate screen, titles, links, charsets, queries.
_INVISIBLE = re.compile(
    r"\x1b(?:\[(?:(?!\?(?:1049|1047|47)[hl])[0-?]*[ -/]*[bcg-rtv-zINOQRUVWYZ\[-_{-~]"
    r"|[<=>?][0-?]*[ -/]*[@-IL-gi-km-~])"
    r"|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|[ -/]+[0-~]|[0-69:->@-CF-LNOQ-WYZ`-bd-~])"
)
_STRAY = re.compile(r"[\x00-\x07\x0e-\x1a\x1c-\x1f\x7f-\x9f]+")
# The controls of 8-bit terminals, as the two characters that mean the same.
_C1 = {
    0x90: "\x1bP",
    0x98: "\x1bX",
    0x9B: "\x1b[",
    0x9C: "\x1b\\",
    0x9D: "\x1b]",
    0x9E: "\x1b^",
    0x9F: "\x1b_",
}
_HAS_C1 = re.compile(r"[\x80-\x9f]")
# What can reach another line than the one that it stands on.
_VERTICAL = re.compile(r"[\x0b\x0c]|\x1b(?:\[[0-?]*[ -/]*[ABEFHJLMSTdefhlsu]|[78DEMc])")
_IN_LINE = re.compile(r"[\r\x08\x1b]")
_IN_LINE_OR_TAB = re.compile(r"[\x00-\x1f\x7f]")


class TerminalFilter:
    """Resolves carriage returns, backspaces, cursor moves, erasing, scrolling, colours and titles.

    A line that was redrawn keeps its last form; what a terminal would no longer show is dropped. Text without
    control characters comes back as it is, and is only scanned once.
    """

    name = "terminal"

    def __init__(self, *, height: int = 50, columns: int = 1000) -> None:
        """`height`: rows that the cursor can reach back to. `columns`: how far moves to the right go."""
        if height < 1 or columns < 1:
            raise ValueError(f"height is {height} and columns is {columns}; give at least 1 for each")
        self._height, self._columns = height, columns

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """The text as shown. Redrawn lines are drops; colours and the like count as invisible."""
        if not _ANY_CONTROL.search(text):
            return FilterResult(text)
        shown = _strip_invisible(text)
        invisible = max(len(text) - len(shown), 0)
        if not _ANY_CONTROL.search(shown):
            return FilterResult(shown, (), invisible)
        lines = shown.split("\n")
        clusters = Clusters()
        start, end, rows = self._region(shown, lines, clusters)
        out: list[str] = []
        drops: list[Drop] = []
        self._each_line(lines, 0, start, clusters, out, drops)
        if end > start:
            out += rows
            drops += _region_drop(lines[start:end], rows, start)
        self._each_line(lines, end, len(lines), clusters, out, drops)
        return FilterResult("\n".join(out), tuple(drops), invisible)

    def _each_line(
        self, lines: list[str], start: int, end: int, clusters: Clusters, out: list[str], drops: list[Drop]
    ) -> None:
        """Lines that only change in place."""
        for i in range(start, end):
            line = lines[i]
            if line.isprintable() or not _IN_LINE.search(line):
                out.append(line)
                continue
            out.append(self._line(line, clusters))
            if out[-1] != line:
                drops.append(Drop("redrawn", i + 1, i + 1, 1, line.count("\r") + line.count("\x1b")))

    def _line(self, line: str, clusters: Clusters) -> str:
        cells = clusters.encode(line)
        row = _overlay(cells)
        if row is None:
            screen = Screen(1, self._columns)
            self._feed(screen, cells)
            row = screen.rows[0]
        return clusters.decode(row).rstrip(" ")

    def _feed(self, screen: Screen, text: str) -> None:
        if text.isprintable():
            if text:
                screen.write(text)
            return
        pos = 0
        for match in CONTROL.finditer(text):
            if match.start() > pos:
                screen.write(text[pos : match.start()])
            screen.control(match)
            pos = match.end()
        if pos < len(text):
            screen.write(text[pos:])

    def _region(self, shown: str, lines: list[str], clusters: Clusters) -> tuple[int, int, list[str]]:
        """The run of lines that vertical moves can change, and the rows that a terminal shows for it.

        It starts one screen above the first vertical move, since no cursor reaches further back, and ends where
        the cursor stands on an untouched row after the last one.
        """
        moves = (
            [i for i, line in enumerate(lines) if _VERTICAL.search(line)] if _VERTICAL.search(shown) else []
        )
        if not moves:
            return 0, 0, []
        start = max(0, moves[0] - self._height)
        screen = Screen(self._height, self._columns)
        screen.rows = []
        for i in range(start, len(lines)):
            self._feed(screen, clusters.encode(lines[i]))
            if i + 1 == len(lines):
                break
            screen.feed()
            if i >= moves[-1] and screen.at_fresh_row():
                rows = screen.text_rows()[: screen.row]
                return start, i + 1, [clusters.decode(r).rstrip(" ") for r in rows]
        return start, len(lines), [clusters.decode(r).rstrip(" ") for r in screen.text_rows()]


def _strip_invisible(text: str) -> str:
    if _HAS_C1.search(text):
        text = text.translate(_C1)
    text = text.replace("\r\n", "\n")
    if "\r\n" in text:
        text = "\n".join(line.rstrip("\r") for line in text.split("\n"))
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if "\x1b" in text:
        text = _INVISIBLE.sub("", text)
    return _STRAY.sub("", text) if _STRAY.search(text) else text


def _overlay(line: str) -> str | None:
    """The common case at once: progress written over itself by returns, cleared by erase to the right.

    None where the line holds any other control.
    """
    row = ""
    for piece in line.split("\r"):
        if piece.endswith("\x1b[K"):
            piece = row = piece[:-3]
        elif len(piece) >= len(row):
            row = piece
        else:
            row = piece + row[len(piece) :]
        if not piece.isprintable() and _IN_LINE_OR_TAB.search(piece):
            return None
    return row


def _region_drop(before: list[str], after: list[str], offset: int) -> list[Drop]:
    """One drop for the part of a region that changed."""
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    first, last = offset + head + 1, offset + len(before) - tail
    if first > last:
        return []
    return [Drop("redrawn", first, last, len(after) - tail - head)]
