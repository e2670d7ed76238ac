"""The running requests in arrays, so that a step's bookkeeping costs per step and not per request."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import FedTokens, ForwardBatch, Int32Array, Int64Array, SamplingBatch
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.request import Request

_NO_TOKEN = -1


class RunningTable:
    """One row a running request; `rows` lists those in use, longest running first.

    Arrays are indexed by row. `page_table[row, :num_pages[row]]` are the request's pages in order, those that it
    borrows from the tree first. `num_tokens` and `num_computed` count what has come back from the model,
    `num_expected` and `num_scheduled` also what steps in flight will bring; with none in flight they are equal.
    """

    def __init__(self, config: SchedulerConfig, page_size: int) -> None:
        n, width = config.max_num_seqs, config.max_model_len
        self.page_size = page_size
        self.rows: Int64Array = np.empty(0, dtype=np.int64)
        self.requests: list[Request | None] = [None] * n
        self.tokens: Int32Array = np.zeros((n, width), dtype=np.int32)
        self.page_table: Int32Array = np.zeros((n, -(-width // page_size)), dtype=np.int32)
        self.num_tokens: Int64Array = np.zeros(n, dtype=np.int64)
        self.num_computed: Int64Array = np.zeros(n, dtype=np.int64)
        self.num_expected: Int64Array = np.zeros(n, dtype=np.int64)
        self.num_scheduled: Int64Array = np.zeros(n, dtype=np.int64)
        self.sampled_at: Int64Array = np.zeros(n, dtype=np.int64)
        """Where a row's expected token stands among the tokens of the step that samples it."""
        self.step_by_step: NDArray[np.bool_] = np.zeros(n, dtype=np.bool_)
        self.num_pages: Int64Array = np.zeros(n, dtype=np.int64)
        self.limit: Int64Array = np.zeros(n, dtype=np.int64)
        self.stop_ids: Int32Array = np.full((n, 4), _NO_TOKEN, dtype=np.int32)
        self.temperature: NDArray[np.float32] = np.zeros(n, dtype=np.float32)
        self.top_k: Int32Array = np.zeros(n, dtype=np.int32)
        self.top_p: NDArray[np.float32] = np.ones(n, dtype=np.float32)
        self.min_p: NDArray[np.float32] = np.zeros(n, dtype=np.float32)
        self.seeds: NDArray[np.uint64] = np.zeros(n, dtype=np.uint64)
        self._unused = list(range(n - 1, -1, -1))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_full(self) -> bool:
        return not self._unused

    def add(self, request: Request, pages: Int32Array, num_computed: int, limit: int) -> None:
        """Start a request whose first `num_computed` tokens lie in `pages`; it ends at `limit` tokens."""
        row = self._unused.pop()
        ids, sampling = request.ids(), request.sampling
        self.requests[row] = request
        request.row = row
        self.tokens[row, : len(ids)] = ids
        self.page_table[row, : len(pages)] = pages
        self.num_tokens[row] = self.num_expected[row] = len(ids)
        self.num_computed[row] = self.num_scheduled[row] = num_computed
        self.step_by_step[row] = request.step_by_step
        self.num_pages[row] = len(pages)
        self.limit[row] = limit
        self.temperature[row] = sampling.temperature
        self.top_k[row] = sampling.top_k
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.seeds[row] = sampling.seed
        self._set_stop_ids(row, sampling.stop_token_ids)
        self.rows = np.append(self.rows, row)

    def retire(self, request: Request) -> None:
        """Run a request no longer; its row stays its own until it is removed."""
        self.rows = self.rows[self.rows != request.row]

    def remove(self, request: Request) -> None:
        """Free the row of a retired request."""
        row = request.row
        self.requests[row] = None
        request.row = -1
        self._unused.append(row)

    def running(self) -> list[Request]:
        """The running requests, longest running first."""
        return [self.request(row) for row in self.rows.tolist()]

    def request(self, row: int) -> Request:
        request = self.requests[row]
        assert request is not None
        return request

    def pages_of(self, request: Request) -> Int32Array:
        return self.page_table[request.row, : self.num_pages[request.row]]

    def rows_to_go_on(self) -> Int64Array:
        """The rows that may compute more although their last token is still expected: not those that end with it."""
        rows = self.rows
        expects = self.num_expected[rows] > self.num_tokens[rows]
        ends = self.num_expected[rows] >= self.limit[rows]
        return rows[~(expects & (ends | self.step_by_step[rows]))]

    def missing_pages(self, rows: Int64Array, num_tokens: Int64Array) -> Int64Array:
        """Pages that each row lacks to hold `num_tokens` tokens, 0 or more."""
        lacking: Int64Array = (num_tokens + (self.page_size - 1)) // self.page_size - self.num_pages[rows]
        return lacking.clip(0)

    def give_pages(self, rows: Int64Array, counts: Int64Array, pages: Int32Array) -> None:
        """Append `counts[i]` of `pages` to the pages of `rows[i]`."""
        at = 0
        for i in np.flatnonzero(counts).tolist():
            row, n = rows[i], int(counts[i])
            first = self.num_pages[row]
            self.page_table[row, first : first + n] = pages[at : at + n]
            self.num_pages[row] += n
            at += n

    def build_batch(self, rows: Int64Array, extend: Int64Array) -> tuple[ForwardBatch, Int64Array]:
        """The batch in which `rows[i]` computes its next `extend[i] >= 1` tokens, and the rows that sample."""
        before = self.num_scheduled[rows]
        after = before + extend
        cu_seqlens = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(extend, out=cu_seqlens[1:])
        if cu_seqlens[-1] == len(rows):  # one token each: spare the ragged expansion
            row_of_token, positions = rows, before
        else:
            row_of_token = np.repeat(rows, extend)
            positions = np.repeat(before - cu_seqlens[:-1], extend) + np.arange(len(row_of_token))
        page = positions // self.page_size
        slots = (self.page_table[row_of_token, page] - page) * self.page_size + positions
        samples = after == self.num_expected[rows]
        last_tokens = cu_seqlens[1:].astype(np.int64) - 1
        input_ids = self.tokens[row_of_token, positions]
        expected = before >= self.num_tokens[rows]
        fed = None
        if expected.any():
            fed = FedTokens(last_tokens[expected], self.sampled_at[rows[expected]])
            input_ids[fed.tokens] = 0
        sampling_rows = rows
        if not samples.all():
            sampling_rows, last_tokens = rows[samples], last_tokens[samples]
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slots,
            page_table=self.page_table[rows, : int(page.max()) + 1],
            cu_seqlens_q=cu_seqlens,
            seq_lens=after.astype(np.int32),
            logits_indices=last_tokens,
            sampling=self._sampling_batch(sampling_rows),
            fed=fed,
        )
        return batch, sampling_rows

    def expect(self, rows: Int64Array, extend: Int64Array, sampling_rows: Int64Array) -> None:
        """Book a step that is about to be launched."""
        self.num_scheduled[rows] += extend
        self.num_expected[sampling_rows] += 1
        self.sampled_at[sampling_rows] = np.arange(len(sampling_rows))

    def append_tokens(
        self, rows: Int64Array, token_ids: Int32Array
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Append a sampled token to each row: (which ended by a stop id, which by their limit)."""
        lengths = self.num_tokens[rows]
        self.tokens[rows, lengths] = token_ids
        self.num_tokens[rows] = lengths + 1
        stopped = (self.stop_ids[rows] == token_ids[:, None]).any(axis=1)
        return stopped, lengths + 1 >= self.limit[rows]

    def _sampling_batch(self, rows: Int64Array) -> SamplingBatch:
        return SamplingBatch(
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            seeds=self.seeds[rows],
            positions=self.num_expected[rows],
        )

    def _set_stop_ids(self, row: int, stop_ids: Sequence[int]) -> None:
        width = self.stop_ids.shape[1]
        if len(stop_ids) > width:
            padding = ((0, 0), (0, len(stop_ids) - width))
            self.stop_ids = np.pad(self.stop_ids, padding, constant_values=_NO_TOKEN)
        self.stop_ids[row] = _NO_TOKEN
        self.stop_ids[row, : len(stop_ids)] = stop_ids
