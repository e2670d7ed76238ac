"""Whether tokens are guessed ahead for a request, how many, and what became of the guesses.

A draft is verified by sampling at each of its places, in one step: as long as what is sampled is what was drafted, the
next place's logits are those that sampling token by token would have had. So the output is the same as without, for
greedy requests and for others, since a draw depends on seed and position only.
"""

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import Int32Array, Int64Array
from deeproot.scheduler.config import SpeculationConfig
from deeproot.scheduler.prompt_lookup import PromptLookup
from deeproot.scheduler.table import Appended, RunningTable

_FIRST_SCORE, _NEWEST = 0.5, 0.25
_PAYS, _PAYS_WELL = 0.2, 0.5
"""Shares of drafts that are accepted, by a running mean: below the first a request pauses, above the second all is
forgiven."""
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024
"""Tokens; each pause in a row is twice as long as the one before."""


class Speculation:
    """Drafts for the rows of one running table."""

    def __init__(self, config: SpeculationConfig, table: RunningTable) -> None:
        num_rows = len(table.requests)
        self._config = config
        self._table = table
        self._lookup = PromptLookup(config, table)
        self._score: NDArray[np.float64] = np.zeros(num_rows, dtype=np.float64)
        self._pause: Int64Array = np.zeros(num_rows, dtype=np.int64)
        self._paused_until: Int64Array = np.zeros(num_rows, dtype=np.int64)

    def start(self, row: int) -> None:
        """A new request runs in `row`."""
        self._lookup.start(row)
        self._score[row] = _FIRST_SCORE
        self._pause[row] = _FIRST_PAUSE
        self._paused_until[row] = 0
        # Guesses go by the last token, so it must be known.
        self._table.step_by_step[row] |= self._table.speculates[row]

    def draft(self, rows: Int64Array, spare: int) -> Int64Array | None:
        """Write drafts behind the tokens of `rows`, `spare` in all at most; how many for each, or None for none.

        There are never more than fit under a row's limit together with the token that is sampled after them.
        """
        table, most = self._table, self._config.disable_by_batch_size
        if spare <= 0 or (most is not None and len(rows) >= most):
            return None
        num_tokens = table.num_tokens[rows]
        room = np.minimum(table.limit[rows] - num_tokens - 1, self._config.num_speculative_tokens)
        # A row that decodes has computed all but its last token.
        able = table.speculates[rows] & (num_tokens - table.num_computed[rows] == 1) & (room > 0)
        able &= num_tokens >= self._paused_until[rows]
        if not able.any():
            return None
        counts = np.zeros(len(rows), dtype=np.int64)
        counts[able] = self._lookup.draft(rows[able], room[able])
        counts = np.clip(spare - (counts.cumsum() - counts), 0, counts)
        return counts if counts.any() else None

    def append(
        self, rows: Int64Array, num_drafted: Int64Array, token_ids: Int32Array
    ) -> tuple[Appended, int]:
        """Append what holds of a verified step, see `RunningTable.append_verified`, and how many drafts held."""
        appended, num_accepted = self._table.append_verified(rows, num_drafted, token_ids)
        tried = num_drafted > 0
        self._note(rows[tried], num_accepted[tried] / num_drafted[tried])
        return appended, int(num_accepted.sum())

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
