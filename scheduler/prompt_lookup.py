"""Guesses at next tokens: what followed the last few tokens where they stood before, in prompt or output.

Agents write much that they have read: files that they edit, paths, names. Whatever is guessed is verified, so a guess
may be wrong and costs only the work of verifying it.

The index is a direct-mapped table in each row for each length of match, kept in arrays, so that a step's lookups are a
fixed number of array operations whatever the number of requests and of tokens before. A slot holds where the last
match of its hash ended. What a hash finds is compared with the tokens themselves; so collisions, and what an earlier
request of the row left behind, cost a guess at most.
"""

import numpy as np

from deeproot.engine.batch import Int64Array
from deeproot.scheduler.config import SpeculationConfig
from deeproot.scheduler.table import RunningTable

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class PromptLookup:
    """Finds drafts for the rows of a running table."""

    def __init__(self, config: SpeculationConfig, table: RunningTable) -> None:
        num_rows, width = table.tokens.shape
        self._table = table
        self._lengths = range(config.prompt_lookup_max, config.prompt_lookup_min - 1, -1)
        self._bits = max(4, (width - 1).bit_length())
        # As many slots as a row can have tokens. Memory is taken as they are used.
        self._ends = np.zeros((len(self._lengths), num_rows, 1 << self._bits), dtype=np.int32)
        self._num_indexed: Int64Array = np.zeros(num_rows, dtype=np.int64)

    def start(self, row: int) -> None:
        """A new request runs in `row`."""
        self._num_indexed[row] = 0

    def draft(self, rows: Int64Array, room: Int64Array) -> Int64Array:
        """Write up to `room` (1 or more) drafts behind the tokens of `rows`, each once, and say how many:
        `[len(rows)]`, 0 where nothing is found."""
        num_tokens = self._table.num_tokens[rows]
        self._index(rows)
        found = self._find(rows, num_tokens)
        hits = found > 0
        if hits.any():
            self._write(rows[hits], num_tokens[hits], found[hits], room[hits])
        return np.where(hits, room, 0)

    def _index(self, rows: Int64Array) -> None:
        """Enter where each match up to, and without, the rows' present ends ended."""
        table = self._table
        before = self._num_indexed[rows]
        sizes = table.num_tokens[rows] - 1 - before
        self._num_indexed[rows] = table.num_tokens[rows] - 1
        total = sizes.cumsum()
        if total[-1] == 0:
            return
        row = np.repeat(rows, sizes)
        end = np.repeat(before + 1 - (total - sizes), sizes) + np.arange(total[-1])
        for i, length in enumerate(self._lengths):
            whole = end >= length
            at, to = (row, end) if whole.all() else (row[whole], end[whole])
            self._ends[i, at, self._hash(at, to, length)] = to

    def _find(self, rows: Int64Array, num_tokens: Int64Array) -> Int64Array:
        """Where the longest match of each row's end ended before; 0 where there is none."""
        tokens = self._table.tokens
        found = np.zeros(len(rows), dtype=np.int64)
        for i, length in enumerate(self._lengths):
            left = np.flatnonzero((found == 0) & (num_tokens > length))
            if not len(left):
                continue
            row, now = rows[left], num_tokens[left]
            then = self._ends[i, row, self._hash(row, now, length)].astype(np.int64)
            same = (then >= length) & (then < now)
            for back in range(1, length + 1):
                same &= tokens[row, np.maximum(then - back, 0)] == tokens[row, now - back]
            found[left[same]] = then[same]
        return found

    def _write(self, rows: Int64Array, num_tokens: Int64Array, found: Int64Array, counts: Int64Array) -> None:
        """What followed, over and over where it leads up to the row's end: a loop goes on as a loop."""
        tokens = self._table.tokens
        columns = np.arange(int(counts.max()))
        source = found[:, None] + columns % (num_tokens - found)[:, None]
        at, ahead = np.nonzero(columns < counts[:, None])
        tokens[rows[at], num_tokens[at] + ahead] = tokens[rows[at], source[at, ahead]]

    def _hash(self, rows: Int64Array, ends: Int64Array, length: int) -> Int64Array:
        """Slots of the `length` tokens before `ends`."""
        tokens = self._table.tokens
        key = np.zeros(len(rows), dtype=np.uint64)
        for back in range(length, 0, -1):
            key = (key + tokens[rows, ends - back].astype(np.uint64)) * _FACTOR
        return (key >> np.uint64(64 - self._bits)).astype(np.int64)
