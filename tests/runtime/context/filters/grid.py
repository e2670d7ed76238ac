"""A terminal in plain words, one cell at a time: what the filter is compared with where pyte differs."""

import re

HEIGHT, COLUMNS = 6, 500


def rows(text: str) -> list[str]:
    """Rows as seen: tabs as blanks, no blanks at the end of rows, no blank rows at the end."""
    return "\n".join(line.expandtabs(8).rstrip(" ") for line in text.split("\n")).rstrip("\n").split("\n")


class Grid:
    """A terminal as a dictionary from (row, column) to character: slow, and written apart from the filter."""

    def __init__(self, height: int, columns: int) -> None:
        self.cells: dict[tuple[int, int], str] = {}
        self.y = self.x = self.top = 0
        self.height, self.columns = height, columns
        self.saved = (0, 0)
        self.lowest = 0
        self.stack: list[tuple[dict[tuple[int, int], str], int, int, int, int]] = []

    def feed(self, stream: str) -> list[str]:
        i = 0
        while i < len(stream):
            match = re.compile(r"\x1b\[(\??)([0-9;]*)([@-~])").match(stream, i)
            if match:
                self.csi(match[1], [int(p or 0) for p in match[2].split(";")], match[3])
                i = match.end()
            elif stream[i] == "\x1b":
                self.escape(stream[i + 1])
                i += 2
            else:
                self.char(stream[i])
                i += 1
        return self.rows()

    def rows(self) -> list[str]:
        lowest = max([y for y, _ in self.cells] + [self.y, self.lowest])
        out = []
        for y in range(lowest + 1):
            right = max([x for r, x in self.cells if r == y], default=-1)
            out.append("".join(self.cells.get((y, x), " ") for x in range(right + 1)))
        return rows("\n".join(out))

    def char(self, c: str) -> None:
        if c == "\n":
            self.down()
            self.x = 0
        elif c == "\x0b":
            self.down()
        elif c == "\r":
            self.x = 0
        elif c == "\x08":
            self.x = max(self.x - 1, 0)
        elif c == "\t":
            self.x += 8 - self.x % 8
        else:
            self.cells[self.y, self.x] = c
            self.x += 1

    def down(self) -> None:
        self.y += 1
        self.top = max(self.top, self.y - self.height + 1)

    def clamp(self, y: int) -> int:
        return max(self.top, min(y, self.top + self.height - 1))

    def shift(self, start: int, by: int) -> None:
        """Move the rows from `start` to the bottom of the screen by some rows; what leaves it is gone."""
        bottom = self.top + self.height
        old = {k: v for k, v in self.cells.items() if start <= k[0] < bottom}
        for k in old:
            del self.cells[k]
        low = self.top if start == self.top else start
        self.cells |= {(y + by, x): v for (y, x), v in old.items() if low <= y + by < bottom}

    def csi(self, private: str, p: list[int], final: str) -> None:
        n = max(p[0], 1)
        if private:
            if p[0] == 1049 and final == "h" and not self.stack:
                self.stack.append((self.cells, self.y, self.x, self.top, 0))
                self.cells, self.y, self.x, self.top = {}, 0, 0, 0
            elif p[0] == 1049 and final == "l" and self.stack:
                self.cells, self.y, self.x, self.top, _ = self.stack.pop()
        elif final in "AF":
            self.y = self.clamp(self.y - n)
            self.x = 0 if final == "F" else self.x
        elif final in "BE":
            self.y = self.clamp(self.y + n)
            self.x = 0 if final == "E" else self.x
        elif final == "C":
            self.x += n
        elif final == "D":
            self.x = max(self.x - n, 0)
        elif final == "G":
            self.x = n - 1
        elif final == "d":
            self.y = self.clamp(self.top + n - 1)
        elif final == "H":
            self.y = self.clamp(self.top + n - 1)
            self.x = max(p[1] if len(p) > 1 else 1, 1) - 1
        elif final in "JK":
            self.erase(final, p[0])
        elif final in "PX@":
            self.edit_row(final, n)
        elif final == "L":
            self.shift(self.y, n)
            self.x = 0
        elif final == "M":
            bottom = self.top + self.height
            for k in [k for k in self.cells if self.y <= k[0] < self.y + n and k[0] < bottom]:
                del self.cells[k]
            self.shift(self.y, -n)
            self.x = 0
        elif final == "S":
            n = min(n, self.height)
            self.lowest = max(self.lowest, self.top + self.height - 1)
            self.top, self.y = self.top + n, self.y + n
        elif final == "T":
            self.shift(self.top, min(n, self.height))
        elif final == "s":
            self.saved = (self.y - self.top, self.x)
        elif final == "u":
            self.y, self.x = self.top + self.saved[0], self.saved[1]

    def erase(self, final: str, how: int) -> None:
        def gone(y: int, x: int) -> bool:
            here = y == self.y and ((how == 0 and x >= self.x) or (how == 1 and x <= self.x) or how == 2)
            if final == "K":
                return here
            below, above = y > self.y, self.top <= y < self.y
            return here or (how == 0 and below) or (how == 1 and above) or (how == 2 and y >= self.top)

        self.cells = {k: v for k, v in self.cells.items() if not gone(*k)}

    def edit_row(self, final: str, n: int) -> None:
        right = {x: v for (y, x), v in self.cells.items() if y == self.y and x >= self.x}
        for x in right:
            del self.cells[self.y, x]
        for x, v in right.items():
            if final == "@":
                self.cells[self.y, x + n] = v
            elif x >= self.x + n:
                self.cells[self.y, x - n if final == "P" else x] = v

    def escape(self, c: str) -> None:
        if c == "7":
            self.saved = (self.y - self.top, self.x)
        elif c == "D":
            self.down()
        elif c == "E":
            self.char("\n")
        elif c == "M":
            if self.y == self.top:
                self.shift(self.top, 1)
            else:
                self.y -= 1
        elif c == "8":
            self.y, self.x = self.top + self.saved[0], self.saved[1]
