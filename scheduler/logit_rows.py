"""What is done with rows of logits beside sampling: edits at each of a draft's tokens, logarithms of prompts."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from deeproot.engine.batch import Int32Array, Int64Array, LogitEdits, PromptLogprobsBatch
from deeproot.scheduler.request import Request
from deeproot.scheduler.row_edits import RowEdits, joined


def edits_of(
    edits: Mapping[int, RowEdits], tokens: Int32Array, rows: Int64Array, positions: Int64Array
) -> LogitEdits | None:
    """Edits of logits rows that take tokens for `positions` of the table's `rows`, `[N]` each.

    The logits rows of a table's row lie together, in order; all but the first stand behind drafts, which `tokens`
    holds at their positions.
    """
    parts: list[LogitEdits] = []
    places: list[int] = []
    bounds = [*np.flatnonzero(np.diff(rows, prepend=-1)).tolist(), len(rows)]
    for start, end in itertools.pairwise(bounds):
        row = int(rows[start])
        if row in edits:
            draft = tokens[row, positions[start] : positions[end - 1]].tolist()
            parts += edits[row].at_each(draft)
            places += range(start, end)
    return joined(parts, places) if parts else None


def prompt_rows(
    wanting: Sequence[Request], tokens: Int32Array, rows: Int64Array, positions: Int64Array
) -> PromptLogprobsBatch | None:
    """Which new tokens, at `positions` of the table's `rows`, `[T]` each, tell about the next of a prompt's tokens.

    wanting: the requests of `rows` that want it.
    """
    first = np.zeros(len(tokens), dtype=np.int64)
    end = np.zeros(len(tokens), dtype=np.int64)
    most = 0
    for request in wanting:
        first[request.row], end[request.row] = request.num_scored, request.num_prompt - 1
        most = max(most, request.sampling.prompt_logprobs or 0)
    indices = np.flatnonzero((positions >= first[rows]) & (positions < end[rows]))
    if not len(indices):
        return None
    following = tokens[rows[indices], positions[indices] + 1].astype(np.int64)
    return PromptLogprobsBatch(indices, following, most)


def count_up(counts: Int64Array) -> Int64Array:
    """`[0, …, counts[0] - 1, 0, …, counts[1] - 1, …]`"""
    ends = counts.cumsum()
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
