"""The running requests in arrays, so that a step's bookkeeping costs per step and not per request."""

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import (
    FedTokens,
    ForwardBatch,
    Int32Array,
    Int64Array,
    PromptLogprobsBatch,
)
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.flight import Appended, Step
from deeproot.scheduler.logit_rows import count_up, prompt_rows
from deeproot.scheduler.request import Request
from deeproot.scheduler.row_edits import needs_last_token
from deeproot.scheduler.table_sampling import NO_TOKEN, SamplingRows


class RunningTable:
    """One row a running request; `rows` lists those in use, longest running first.

    Arrays are indexed by row. `page_table[row, :num_pages[row]]` are the request's pages in order, those that it
    borrows from the tree first. `num_tokens` and `num_computed` count what has come back from the model,
    `num_expected` and `num_scheduled` also what steps in flight will bring; with none in flight they are equal.
    """

    def __init__(self, config: SchedulerConfig, page_size: int) -> None:
        n, width = config.max_num_seqs, config.max_model_len
        self.page_size = page_size
        self._overlap = config.overlap
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
        self.sampling = SamplingRows(n)
        self._unused = list(range(n - 1, -1, -1))
        # Counts from 0, of which steps take the first: nobody may change them.
        self._indices: Int64Array = np.arange(n)
        self._offsets: Int32Array = np.arange(n + 1, dtype=np.int32)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_full(self) -> bool:
        return not self._unused

    def add(self, request: Request, pages: Int32Array, num_computed: int, limit: int) -> None:
        """Start a request whose first `num_computed` tokens lie in `pages`; it ends at `limit` tokens."""
        row = self._unused.pop()
        ids = request.ids()
        self.requests[row] = request
        request.row = row
        self.tokens[row, : len(ids)] = ids
        self.page_table[row, : len(pages)] = pages
        self.num_tokens[row] = self.num_expected[row] = len(ids)
        self.num_computed[row] = self.num_scheduled[row] = num_computed
        self.step_by_step[row] = request.step_by_step or needs_last_token(request.sampling)
        self.num_pages[row] = len(pages)
        self.limit[row] = limit
        self.sampling.add(request, ids, limit)
        self.rows = np.append(self.rows, row)

    def retire(self, request: Request) -> None:
        """Run a request no longer; its row stays its own until it is removed."""
        self.rows = self.rows[self.rows != request.row]

    def remove(self, request: Request) -> None:
        """Free the row of a retired request."""
        row = request.row
        self.requests[row] = None
        self.sampling.remove(row)
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
        stays = expects & (ends | self.step_by_step[rows])
        return rows[~stays] if np.logical_or.reduce(stays) else rows

    def missing_pages(self, rows: Int64Array, num_tokens: Int64Array) -> Int64Array:
        """Pages that each row lacks to hold `num_tokens` tokens, 0 or more."""
        lacking: Int64Array = (num_tokens + (self.page_size - 1)) // self.page_size - self.num_pages[rows]
        # Not clip, which goes through Python and costs ten times as much.
        return np.maximum(lacking, 0)

    def give_pages(self, rows: Int64Array, counts: Int64Array, pages: Int32Array) -> None:
        """Append `counts[i]` of `pages` to the pages of `rows[i]`."""
        at = 0
        for i in counts.nonzero()[0].tolist():
            row, n = rows[i], int(counts[i])
            first = self.num_pages[row]
            self.page_table[row, first : first + n] = pages[at : at + n]
            self.num_pages[row] += n
            at += n

    def build_batch(
        self, rows: Int64Array, extend: Int64Array, num_drafted: Int64Array | None = None
    ) -> tuple[ForwardBatch, Int64Array]:
        """The batch in which `rows[i]` computes its next `extend[i] >= 1` tokens, and the rows that sample.

        The last `num_drafted[i]` of them are drafts, which lie behind the row's tokens: logits are wanted at each of
        these and before the first.
        """
        before = self.num_scheduled[rows]
        after = before + extend
        n = len(rows)
        if np.add.reduce(extend) == n:  # one token each: spare the ragged expansion
            cu_seqlens, last_tokens = self._offsets[: n + 1], self._indices[:n]
            row_of_token, positions = rows, before
        else:
            cu_seqlens = np.zeros(n + 1, dtype=np.int32)
            np.cumsum(extend, out=cu_seqlens[1:])
            last_tokens = cu_seqlens[1:].astype(np.int64) - 1
            row_of_token = np.repeat(rows, extend)
            positions = np.repeat(before - cu_seqlens[:-1], extend) + np.arange(len(row_of_token))
        page = positions // self.page_size
        slots = (self.page_table[row_of_token, page] - page) * self.page_size + positions
        samples = after >= self.num_expected[rows]
        input_ids = self.tokens[row_of_token, positions]
        fed = None
        if self._overlap and (expected := before >= self.num_tokens[rows]).any():
            fed = FedTokens(last_tokens[expected], self.sampled_at[rows[expected]])
            input_ids[fed.tokens] = 0
        sampling_rows = rows
        if not np.logical_and.reduce(samples):
            sampling_rows, last_tokens = rows[samples], last_tokens[samples]
        if num_drafted is None:
            logits_indices = last_tokens
            sampling = self.sampling.batch(sampling_rows, self.num_expected[sampling_rows], self.tokens)
        else:
            behind = num_drafted[samples]
            ahead = count_up(behind + 1)
            logits_indices = np.repeat(last_tokens - behind, behind + 1) + ahead
            row_of_logits = np.repeat(sampling_rows, behind + 1)
            sampling = self.sampling.batch(
                row_of_logits, self.num_expected[row_of_logits] + ahead, self.tokens
            )
        batch = ForwardBatch(
            input_ids=input_ids,
            positions=positions,
            slot_mapping=slots,
            page_table=self.page_table[rows, : int(np.maximum.reduce(page)) + 1],
            cu_seqlens_q=cu_seqlens,
            seq_lens=after.astype(np.int32),
            logits_indices=logits_indices,
            sampling=sampling,
            prompt_logprobs=self._prompt_rows(row_of_token, positions) if self.sampling.scored else None,
            fed=fed,
        )
        return batch, sampling_rows

    def expect(self, step: Step) -> None:
        """Book a step that is about to be launched: of drafts, nothing is expected."""
        self.num_scheduled[step.rows] += step.certain
        self.num_expected[step.sampling_rows] += 1
        if not self._overlap:
            return
        if step.num_drafted is None:
            self.sampled_at[step.sampling_rows] = np.arange(len(step.sampling_rows))
        else:
            self.sampled_at[step.sampling_rows] = step.num_logits.cumsum() - 1

    def append_tokens(self, rows: Int64Array, token_ids: Int32Array) -> Appended:
        """Append a sampled token to each row."""
        lengths = self.num_tokens[rows]
        self.tokens[rows, lengths] = token_ids
        self.num_tokens[rows] = lengths + 1
        if self.sampling.edits:
            self.sampling.push_edits(rows.tolist(), token_ids.tolist())
        settings = self.sampling.settings_of(rows)
        stopped = np.logical_or.reduce(settings.stop_ids == token_ids[:, None], axis=1)
        return Appended(rows, self._indices[: len(rows)], stopped, lengths + 1 >= settings.limit)

    def append_verified(
        self, rows: Int64Array, num_drafted: Int64Array, token_ids: Int32Array
    ) -> tuple[Appended, Int64Array]:
        """Append what was sampled at and behind each row's end, up to the first token that is not as drafted.

        token_ids: `num_drafted[i] + 1` for each row. A draft that was sampled has been computed, so the token after
        it counts too: what is appended is what sampling token by token would have given. Also returns how many of
        each row's drafts were sampled, `[len(rows)]`, also behind a stop id.
        """
        sizes = num_drafted + 1
        at, ahead = np.repeat(np.arange(len(rows)), sizes), count_up(sizes)
        columns = np.arange(int(sizes.max()))
        sampled = np.full((len(rows), len(columns)), NO_TOKEN, dtype=np.int32)
        sampled[at, ahead] = token_ids
        first = self.num_tokens[rows]
        places = np.minimum(first[:, None] + columns, self.tokens.shape[1] - 1)
        agrees = (sampled == self.tokens[rows[:, None], places]) & (columns < num_drafted[:, None])
        num_accepted = np.logical_and.accumulate(agrees, axis=1).sum(axis=1)
        num_new = num_accepted + 1
        stops = (sampled[:, :, None] == self.sampling.stop_ids[rows][:, None, :]).any(axis=2)
        stops &= columns < num_new[:, None]
        stopped = stops.any(axis=1)
        num_new = np.where(stopped, stops.argmax(axis=1) + 1, num_new)
        kept = ahead < num_new[at]
        row_of_kept = rows[at[kept]]
        self.tokens[row_of_kept, first[at[kept]] + ahead[kept]] = token_ids[kept]
        self.num_tokens[rows] = first + num_new
        # The draft's tokens that were sampled; the one after them is booked as any other.
        for counter in (self.num_computed, self.num_scheduled, self.num_expected):
            counter[rows] += num_new - 1
        if self.sampling.edits:
            self.sampling.push_edits(row_of_kept.tolist(), token_ids[kept].tolist())
        full = self.num_tokens[rows] >= self.limit[rows]
        return Appended(row_of_kept, num_new.cumsum() - 1, stopped, full, kept), num_accepted

    def _prompt_rows(self, rows: Int64Array, positions: Int64Array) -> PromptLogprobsBatch | None:
        wanting = [self.request(row) for row in self.sampling.scored & set(rows.tolist())]
        return prompt_rows(wanting, self.tokens, rows, positions)
