"""Whether tokens are guessed ahead for a request, how many, and what became of the guesses.

A draft is verified by sampling at each of its places, in one step: as long as what is sampled is what was drafted, the
next place's logits are those that sampling token by token would have had. So the output is the same as without, for
greedy requests and for others, since a draw depends on seed and position only.
"""

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import Int64Array
from deeproot.scheduler.config import SpeculationConfig
from deeproot.scheduler.flight import Appended
from deeproot.scheduler.outputs import Landed
from deeproot.scheduler.prompt_lookup import PromptLookup
from deeproot.scheduler.stats import Counters
from deeproot.scheduler.table import RunningTable

_FIRST_SCORE, _NEWEST = 0.5, 0.25
_PAYS, _PAYS_WELL = 0.2, 0.5
"""Shares of drafts that are accepted, by a running mean: below the first a request pauses, above the second all is
forgiven."""
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024
"""Tokens; each pause in a row is twice as long as the one before."""


class Speculation:
    """Drafts for the rows of one running table."""

    def __init__(self, config: SpeculationConfig | None, table: RunningTable) -> None:
        """Without a config nothing is ever guessed, which costs nothing."""
        num_rows = len(table.requests)
        self._config = config
        self._table = table
        self._lookup = None if config is None else PromptLookup(config, table)
        self._score: NDArray[np.float64] = np.zeros(num_rows, dtype=np.float64)
        self._pause: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self._paused_until: Int64Array = np.zeros(num_rows, dtype=np.int64)

    def start(self, row: int) -> None:
        """A new request runs in `row`."""
        if self._lookup is None:
            return
        self._lookup.start(row)
        self._score[row] = _FIRST_SCORE
        self._pause[row] = _FIRST_PAUSE
        self._paused_until[row] = 0
        # Guesses go by the last token, so it must be known.
        self._table.step_by_step[row] |= self._table.sampling.speculates[row]

    def draft(self, rows: Int64Array, extend: Int64Array, budget: int, pages: int) -> Int64Array | None:
        """Write drafts behind the tokens of `rows`, which compute `extend` tokens; how many for each, or None for none.

        There are never more than fit under a row's limit together with the token that is sampled after them, into
        `budget` tokens of a step, and into `pages` that are to be had.
        """
        if self._lookup is None or self._config is None:
            return None
        table, most = self._table, self._config.disable_by_batch_size
        spare = budget - int(extend.sum())
        if spare <= 0 or (most is not None and len(rows) >= most):
            return None
        num_tokens = table.num_tokens[rows]
        room = np.minimum(table.limit[rows] - num_tokens - 1, self._config.num_speculative_tokens)
        # A row that decodes has computed all but its last token.
        able = table.sampling.speculates[rows] & (num_tokens - table.num_computed[rows] == 1) & (room > 0)
        able &= num_tokens >= self._paused_until[rows]
        if not able.any():
            return None
        counts = np.zeros(len(rows), dtype=np.int64)
        counts[able] = self._lookup.draft(rows[able], room[able])
        counts = np.clip(spare - (counts.cumsum() - counts), 0, counts)
        missing = table.missing_pages(rows, table.num_scheduled[rows] + extend + counts)
        return counts if counts.any() and missing.sum() <= pages else None

    def append(self, landed: Landed, counters: Counters) -> Appended:
        """Append a finished step's tokens; of drafts, those that hold."""
        rows, num_drafted = landed.sampling_rows, landed.num_drafted
        if num_drafted is None or not len(rows):
            return self._table.append_tokens(rows, landed.token_ids)
        appended, num_accepted = self._table.append_verified(rows, num_drafted, landed.token_ids)
        tried = num_drafted > 0
        self._note(rows[tried], num_accepted[tried] / num_drafted[tried])
        counters.drafted += int(num_drafted.sum())
        counters.accepted += int(num_accepted.sum())
        return appended

    def _note(self, rows: Int64Array, shares: NDArray[np.float64]) -> None:
        """Judge `rows` by the share of their drafts that was accepted."""
        score = (1 - _NEWEST) * self._score[rows] + _NEWEST * shares
        pauses = score < _PAYS
        idle, pause = rows[pauses], self._pause[rows[pauses]]
        self._paused_until[idle] = self._table.num_tokens[idle] + pause
        self._pause[idle] = np.minimum(2 * pause, _LONGEST_PAUSE)
        self._pause[rows[score > _PAYS_WELL]] = _FIRST_PAUSE
        # After a pause one bad draft is enough for the next.
        self._score[rows] = np.where(pauses, _PAYS, score)
