"""How the tokens of each running request are chosen, in arrays indexed by the running table's rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import Int32Array, Int64Array, SamplingBatch
from deeproot.scheduler.constraints import Constraint, mask_of
from deeproot.scheduler.logit_rows import edits_of
from deeproot.scheduler.request import Request
from deeproot.scheduler.row_edits import RowEdits, has_edits

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class Settings:
    """What never changes while its requests run, gathered for `rows`: known by that very array."""

    rows: Int64Array
    temperature: NDArray[np.float32]
    top_k: Int32Array
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seeds: NDArray[np.uint64]
    num_logprobs: Int32Array | None
    """None: nobody wants any."""
    stop_ids: Int32Array
    limit: Int64Array
    """Tokens at which each request ends."""
    rids: list[str]


class SamplingRows:
    """Of each row that is in use, what its request asks for."""

    def __init__(self, num_rows: int) -> None:
        n = num_rows
        self._rids = [""] * n
        self._limit: Int64Array = np.zeros(n, dtype=np.int64)
        self.stop_ids: Int32Array = np.full((n, 4), NO_TOKEN, dtype=np.int32)
        self._temperature: NDArray[np.float32] = np.zeros(n, dtype=np.float32)
        self._top_k: Int32Array = np.zeros(n, dtype=np.int32)
        self._top_p: NDArray[np.float32] = np.ones(n, dtype=np.float32)
        self._min_p: NDArray[np.float32] = np.zeros(n, dtype=np.float32)
        self._seeds: NDArray[np.uint64] = np.zeros(n, dtype=np.uint64)
        self.speculates: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        """Rows for which tokens may be guessed ahead."""
        self.num_logprobs: Int32Array = np.full(n, -1, dtype=np.int32)
        self.edits: dict[int, RowEdits] = {}
        """Of the rows that have any."""
        self.constraints: dict[int, Constraint] = {}
        """Of the rows whose output is held to a grammar."""
        self.scored: set[int] = set()
        """Rows that want the logarithms of their prompt's probabilities."""
        self._gathered: Settings | None = None
        """Settings of the rows that were asked for last: mostly those of the next step, too."""

    def add(self, request: Request, ids: Int32Array, limit: int) -> None:
        """A request has got its row. `ids`: its tokens so far; `limit`: how many it ends with."""
        row, sampling = request.row, request.sampling
        self._rids[row] = request.rid
        self._limit[row] = limit
        self._temperature[row] = sampling.temperature
        self._top_k[row] = sampling.top_k
        self._top_p[row] = sampling.top_p
        self._min_p[row] = sampling.min_p
        self._seeds[row] = sampling.seed
        # A draft's later places would need masks of their own.
        self.speculates[row] = sampling.speculate and request.constraint is None
        self.num_logprobs[row] = -1 if sampling.logprobs is None else sampling.logprobs
        if has_edits(sampling):
            self.edits[row] = RowEdits(sampling, ids, request.num_prompt)
        if request.constraint is not None:
            self.constraints[row] = request.constraint
        if sampling.prompt_logprobs is not None:
            self.scored.add(row)
        self._set_stop_ids(row, sampling.stop_token_ids)

    def remove(self, row: int) -> None:
        """The row is nobody's any more."""
        self.num_logprobs[row] = -1
        self.edits.pop(row, None)
        self.constraints.pop(row, None)
        self.scored.discard(row)

    def push_edits(self, rows: Sequence[int], token_ids: Sequence[int]) -> None:
        """Tell the edits of `rows`, where they have any, what was appended."""
        for row, token_id in zip(rows, token_ids, strict=True):
            if row in self.edits:
                self.edits[row].push(token_id)

    def settings_of(self, rows: Int64Array) -> Settings:
        """Nobody may change what is in it, nor `rows`."""
        found = self._gathered
        if found is None or found.rows is not rows:
            num_logprobs = self.num_logprobs[rows]
            found = self._gathered = Settings(
                rows,
                self._temperature[rows],
                self._top_k[rows],
                self._top_p[rows],
                self._min_p[rows],
                self._seeds[rows],
                num_logprobs if num_logprobs.max(initial=-1) >= 0 else None,
                self.stop_ids[rows],
                self._limit[rows],
                [self._rids[row] for row in rows.tolist()],
            )
        return found

    def batch(self, rows: Int64Array, positions: Int64Array, tokens: Int32Array) -> SamplingBatch:
        """Settings of logits rows: `rows[i]` takes its token for position `positions[i]`; rows may repeat, in order.

        tokens: of all rows of the table, drafts included.
        """
        settings = self.settings_of(rows)
        return SamplingBatch(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seeds=settings.seeds,
            positions=positions,
            edits=edits_of(self.edits, tokens, rows, positions) if self.edits else None,
            mask=mask_of(self.constraints, rows) if self.constraints else None,
            num_logprobs=settings.num_logprobs,
        )

    def _set_stop_ids(self, row: int, stop_ids: Sequence[int]) -> None:
        width = self.stop_ids.shape[1]
        if len(stop_ids) > width:
            padding = ((0, 0), (0, len(stop_ids) - width))
            self.stop_ids = np.pad(self.stop_ids, padding, constant_values=NO_TOKEN)
        self.stop_ids[row] = NO_TOKEN
        self.stop_ids[row, : len(stop_ids)] = stop_ids
