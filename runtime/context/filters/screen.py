"""A terminal's screen with unlimited scrollback: text and control sequences in, rows out."""

import re
from collections.abc import Callable

# One alternative a group, so that `lastgroup` tells what it is.
CONTROL = re.compile(
    r"\x1b(?:\[(?P<params>[0-?]*)[ -/]*(?P<csi>[@-~]?)"
    r"|(?P<string>[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?)"
    r"|[ -/]+[0-~]?|(?P<esc>[0-~]?))"
    r"|(?P<home>\r)|(?P<feed>\n)|(?P<back>\x08)|(?P<down>[\x0b\x0c])"
)
_ALTERNATE = ("?1049", "?1047", "?47")
_TAB = 8
_MAX_MOVE = 9_999  # a terminal clamps to its size; a log has none, and must not be made to fill the memory


def put(row: str, col: int, run: str, margin: int) -> tuple[str, int]:
    """Write printable text into a row at a column; gives the row and the column after it."""
    if "\t" in run:
        pieces = run.split("\t")
        row, col = put(row, col, pieces[0], margin)
        for piece in pieces[1:]:
            col = max(col, min((col // _TAB + 1) * _TAB, margin - 1))
            row, col = put(row, col, piece, margin)
        return row, col
    if not run:
        return row, col
    end = col + len(run)
    if col < len(row):
        return row[:col] + run + row[end:], end
    return row + " " * (col - len(row)) + run, end


class Screen:
    """Rows, a cursor, and what control sequences do to them.

    Wide as the text needs (a log has no width; `columns` only bounds moves to the right), `height` rows tall:
    what scrolls off the top stays in `rows` but is out of the cursor's reach, as on a terminal. A line feed
    also returns the carriage, as the terminal driver makes it do. Scroll regions are not modelled.
    """

    def __init__(self, height: int, columns: int) -> None:
        self.rows: list[str] = [""]
        self.row = self.col = self.top = 0
        self.height, self.columns = height, columns
        self._saved = (0, 0)
        self._main: tuple[list[str], int, int, int] | None = None
        self._moves: dict[str, Callable[[int], None]] = {
            "A": lambda n: self._vertical(-n),
            "B": self._vertical,
            "e": self._vertical,
            "C": lambda n: self._horizontal(self.col + n),
            "a": lambda n: self._horizontal(self.col + n),
            "D": lambda n: self._horizontal(min(self.col, self.columns) - n),
            "E": lambda n: self._line_move(n),
            "F": lambda n: self._line_move(-n),
            "G": lambda n: self._horizontal(n - 1),
            "`": lambda n: self._horizontal(n - 1),
            "d": lambda n: self._vertical(self.top + n - 1 - self.row),
            "L": self._insert_lines,
            "M": self._delete_lines,
            "P": self._delete_chars,
            "X": self._erase_chars,
            "@": self._insert_chars,
            "S": self._scroll_up,
            "T": self._scroll_down,
        }

    def write(self, run: str) -> None:
        """Print text without controls (tabs apart)."""
        if self.row >= len(self.rows):
            self._reach(self.row)
        self.rows[self.row], self.col = put(self.rows[self.row], self.col, run, self.columns)

    def control(self, match: re.Match[str]) -> None:
        """Obey one match of `CONTROL`."""
        kind = match.lastgroup
        if kind == "feed":
            self.feed()
        elif kind == "csi":
            self._csi(match["params"], match["csi"])
        elif kind == "home":
            self.col = 0
        elif kind == "back":
            self.col = max(0, min(self.col, self.columns) - 1)
        elif kind == "down":
            self._index()
        elif kind == "esc":
            self._escape(match["esc"])

    def feed(self) -> None:
        """Line feed with carriage return."""
        self._index()
        self.col = 0

    def text_rows(self) -> list[str]:
        """All rows, down to the cursor at least. A screen left in the alternate buffer shows both."""
        rows = list(self.rows)
        if self._main is not None:
            rows = self._main[0] + rows
        elif self.row >= len(rows):
            rows += [""] * (self.row - len(rows) + 1)
        return rows

    def at_fresh_row(self) -> bool:
        """The cursor is at the start of a row that nothing stands on or under, so what follows is independent."""
        return self.col == 0 and self.row >= len(self.rows) and self._main is None

    def _reach(self, row: int) -> None:
        self.rows.extend([""] * (row + 1 - len(self.rows)))

    def _index(self) -> None:
        if self.row >= self.top + self.height - 1:
            self.top += 1
        self.row += 1

    def _vertical(self, by: int) -> None:
        self.row = min(max(self.row + by, self.top), self.top + self.height - 1)

    def _horizontal(self, col: int) -> None:
        self.col = max(0, min(col, max(self.columns - 1, 0)))

    def _line_move(self, by: int) -> None:
        self._vertical(by)
        self.col = 0

    def _csi(self, params: str, final: str) -> None:
        if final in ("h", "l"):
            if any(p in _ALTERNATE for p in params.split(";")):
                self._alternate(final == "h")
            return
        numbers = [_number(p) for p in params.split(";")]
        if params[:1] in ("<", "=", ">", "?") and final not in ("J", "K"):
            return
        if final in ("H", "f"):
            self._vertical(self.top + max(numbers[0], 1) - 1 - self.row)
            self._horizontal(max(numbers[1] if len(numbers) > 1 else 1, 1) - 1)
        elif final == "J":
            self._erase_screen(numbers[0])
        elif final == "K":
            self._erase_line(numbers[0])
        elif final == "s":
            self._saved = (self.row - self.top, self.col)
        elif final == "u":
            self._restore()
        elif final in self._moves:
            self._moves[final](max(numbers[0], 1))

    def _escape(self, final: str) -> None:
        if final == "7":
            self._saved = (self.row - self.top, self.col)
        elif final == "8":
            self._restore()
        elif final == "D":
            self._index()
        elif final == "E":
            self.feed()
        elif final == "M":
            if self.row == self.top:
                self._scroll_down(1)
            else:
                self.row -= 1
        elif final == "c":
            self._erase_screen(2)
            self.row, self.col, self._saved = self.top, 0, (0, 0)

    def _restore(self) -> None:
        self.row, self.col = self.top + self._saved[0], self._saved[1]

    def _alternate(self, enter: bool) -> None:
        if enter and self._main is None:
            self._main = (self.rows, self.row, self.col, self.top)
            self.rows, self.row, self.col, self.top = [""], 0, 0, 0
        elif not enter and self._main is not None:
            self.rows, self.row, self.col, self.top = self._main
            self._main = None

    def _erase_screen(self, how: int) -> None:
        if how == 0:
            self._erase_line(0)
            del self.rows[self.row + 1 :]
        elif how == 1:
            for i in range(self.top, min(self.row, len(self.rows))):
                self.rows[i] = ""
            self._erase_line(1)
        elif how == 2:
            del self.rows[self.top :]

    def _erase_line(self, how: int) -> None:
        if self.row >= len(self.rows):
            return
        row = self.rows[self.row]
        if how == 0:
            self.rows[self.row] = row[: self.col]
        elif how == 1:
            self.rows[self.row] = " " * min(self.col + 1, len(row)) + row[self.col + 1 :]
        elif how == 2:
            self.rows[self.row] = ""

    def _delete_chars(self, n: int) -> None:
        if self.row < len(self.rows):
            row = self.rows[self.row]
            self.rows[self.row] = row[: self.col] + row[self.col + n :]

    def _insert_chars(self, n: int) -> None:
        if self.row < len(self.rows) and self.col < len(self.rows[self.row]):
            row = self.rows[self.row]
            # What a terminal pushes over its right edge is lost there.
            self.rows[self.row] = (row[: self.col] + " " * n + row[self.col :])[: max(self.columns, len(row))]

    def _erase_chars(self, n: int) -> None:
        if self.row < len(self.rows):
            row = self.rows[self.row]
            blanks = " " * max(min(n, len(row) - self.col), 0)
            self.rows[self.row] = row[: self.col] + blanks + row[self.col + n :]

    def _bottom(self) -> int:
        return self.top + self.height

    def _insert_lines(self, n: int) -> None:
        n = min(n, self._bottom() - self.row)
        if self.row < len(self.rows):
            self.rows[self.row : self.row] = [""] * n
            del self.rows[self._bottom() :]
        self.col = 0

    def _delete_lines(self, n: int) -> None:
        del self.rows[self.row : min(self.row + n, self._bottom())]
        self.col = 0

    def _scroll_up(self, n: int) -> None:
        n = min(n, self.height)
        self._reach(self._bottom() - 1)
        self.top += n
        self.row += n

    def _scroll_down(self, n: int) -> None:
        n = min(n, self.height)
        if self.top < len(self.rows):
            self.rows[self.top : self.top] = [""] * n
            del self.rows[self._bottom() :]


def _number(parameter: str) -> int:
    """A move or a place; Python refuses to read numbers of thousands of digits."""
    if not parameter.isdecimal():
        return 0
    return min(int(parameter.lstrip("0")[:9] or 0), _MAX_MOVE)
