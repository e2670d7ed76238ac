"""Continuous batching without phases: schedule, forward, commit.

Each step gives every running request up to all the tokens that it has and has not computed: one for a request that
decodes, a chunk for one whose prompt is long. Requests that need a single token come first, so that long prompts
do not hold up running streams; then longest running first, within the step's budget of tokens.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array, Sampled
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.admission import Admission, take_pages
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, FinishReason, TokenOutput
from deeproot.scheduler.outputs import prompt_outputs, token_outputs
from deeproot.scheduler.request import Request
from deeproot.scheduler.speculation import Speculation
from deeproot.scheduler.stats import Counters
from deeproot.scheduler.table import Appended, RunningTable


class Forward(Protocol):
    """The model side of a step."""

    def forward(self, batch: ForwardBatch) -> Sampled:
        """Compute the batch's new tokens and sample."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What `schedule` decided: `rows[i]` computes `extend[i]` tokens."""

    rows: Int64Array
    extend: Int64Array
    sampling_rows: Int64Array
    batch: ForwardBatch
    num_drafted: Int64Array | None = None
    """How many of each row's `extend` are drafts; None: none at all."""


class Scheduler:
    """Runs requests over one model, pool and cache. Not thread-safe: one thread calls it."""

    def __init__(self, config: SchedulerConfig, cache: RadixCache, pool: KVPool, runner: Forward) -> None:
        capacity = pool.num_pages * pool.page_size
        if cache.page_size != pool.page_size:
            raise ValueError(f"page sizes differ: cache {cache.page_size}, pool {pool.page_size}")
        if config.max_model_len > capacity:
            raise ValueError(
                f"max_model_len ({config.max_model_len}) is more than the KV pool holds ({capacity} tokens): "
                "give the pool more memory or lower max_model_len"
            )
        self.config = config
        self.cache = cache
        self.pool = pool
        self.runner = runner
        self.table = RunningTable(config, pool.page_size)
        self.waiting: deque[Request] = deque()
        self.counters = Counters()
        self._limits: dict[str, int] = {}
        self._admission = Admission(cache, pool, self.table)
        self._speculation = (
            None if config.speculation is None else Speculation(config.speculation, self.table)
        )
        self._refused: list[TokenOutput] = []

    def add(self, message: AddRequest) -> None:
        """Take a request; one that can never run is answered with an error by the next step.

        Raises ValueError if a request of the same rid has not ended.
        """
        if message.rid in self._limits:
            raise ValueError(f"a request {message.rid!r} is running already")
        request = Request.from_message(message)
        error = self._why_impossible(request)
        if error is not None:
            last = TokenOutput(request.rid, None, error=error)
            self._refused.append(request.finished("error", last, request.num_prompt))
            return
        self._limits[request.rid] = min(
            request.num_prompt + request.sampling.max_tokens, self.config.max_model_len
        )
        self.counters.prompt += request.num_prompt
        self.waiting.append(request)

    def abort(self, rid: str) -> TokenOutput | None:
        """End a request; None if it is not here (any more)."""
        for request in self.waiting:
            if request.rid == rid:
                self.waiting.remove(request)
                return self._finish(request, "abort", TokenOutput(rid, None), request.num_tokens)
        for request in self.table.running():
            if request.rid == rid:
                num_tokens = int(self.table.num_tokens[request.row])
                self._leave_table(request, keep=True)
                return self._finish(request, "abort", TokenOutput(rid, None), num_tokens)
        return None

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or len(self.table) or self._refused)

    def step(self) -> list[TokenOutput]:
        """One forward pass and its outputs. A failing forward ends the requests that were in it."""
        outputs, self._refused = self._refused, []
        step = self.schedule()
        if step is None:
            return outputs
        try:
            sampled = self.runner.forward(step.batch)
        except Exception as error:
            return outputs + self._fail(step, error)
        return outputs + self.commit(step, sampled)

    def schedule(self) -> Step | None:
        """Admit what fits, find pages and build the next batch; None when there is nothing to compute."""
        rows, extend, missing = self._next_extends()
        if missing.sum() > self._available_pages():
            rows, extend, missing = self._preempt_until_it_fits()
        elif self.waiting and self._admit(self.config.max_num_batched_tokens - int(extend.sum())):
            rows, extend, missing = self._next_extends()
        if not len(rows):
            return None
        num_drafted = self._draft(rows, extend)
        if num_drafted is not None:
            extend = extend + num_drafted
            missing = self.table.missing_pages(rows, self.table.num_computed[rows] + extend)
        num_missing = int(missing.sum())
        if num_missing:
            self.table.give_pages(rows, missing, self._take_pages(num_missing))
        batch, sampling_rows = self.table.build_batch(rows, extend, num_drafted)
        return Step(rows, extend, sampling_rows, batch, num_drafted)

    def commit(self, step: Step, sampled: Sampled) -> list[TokenOutput]:
        """Book a finished forward: computed tokens, cache, new tokens, ends."""
        table = self.table
        certain = step.extend if step.num_drafted is None else step.extend - step.num_drafted
        table.num_computed[step.rows] += certain
        self.counters.steps += 1
        self.counters.computed += len(step.batch.input_ids)
        for row in step.rows[certain > 1].tolist():
            self._insert(table.request(row), whole_pages_only=True)
        outputs = prompt_outputs(table, step.rows, step.extend, step.batch, sampled)
        appended = self._append(step, sampled.token_ids)
        new = token_outputs(table, appended, step.batch, sampled)
        self.counters.output += len(new)
        for i in np.flatnonzero(appended.stopped | appended.full).tolist():
            last = int(appended.last[i])
            request = table.request(int(step.sampling_rows[i]))
            num_tokens = int(table.num_tokens[request.row])
            self._leave_table(request, keep=True)
            new[last] = self._finish(
                request, "stop" if appended.stopped[i] else "length", new[last], num_tokens
            )
        return outputs + new

    def _append(self, step: Step, token_ids: Int32Array) -> Appended:
        if self._speculation is None or step.num_drafted is None:
            return self.table.append_tokens(step.sampling_rows, token_ids)
        # Only rows that sample have drafts.
        num_drafted = step.num_drafted[np.isin(step.rows, step.sampling_rows)]
        self.counters.drafted += int(num_drafted.sum())
        appended, num_accepted = self._speculation.append(step.sampling_rows, num_drafted, token_ids)
        self.counters.accepted += num_accepted
        return appended

    def _draft(self, rows: Int64Array, extend: Int64Array) -> Int64Array | None:
        """How many tokens are guessed ahead for each row: None, or as many as budget and free pages allow."""
        if self._speculation is None:
            return None
        counts = self._speculation.draft(rows, self.config.max_num_batched_tokens - int(extend.sum()))
        if counts is None:
            return None
        missing = self.table.missing_pages(rows, self.table.num_computed[rows] + extend + counts)
        return counts if missing.sum() <= self._available_pages() else None

    def _next_extends(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """What running requests compute next: rows, their tokens (one or more), the pages that they lack for them."""
        table, budget = self.table, self.config.max_num_batched_tokens
        rows = table.rows
        computed = table.num_computed[rows]
        extend = table.num_tokens[rows] - computed
        if extend.sum() > budget:
            order = np.argsort(extend > 1, kind="stable")
            rows, computed, wanted = rows[order], computed[order], extend[order]
            extend = np.clip(budget - (np.cumsum(wanted) - wanted), 0, wanted)
            gets = extend > 0
            rows, computed, extend = rows[gets], computed[gets], extend[gets]
        return rows, extend, table.missing_pages(rows, computed + extend)

    def _available_pages(self) -> int:
        return self.pool.num_free + self.cache.num_evictable

    def _preempt_until_it_fits(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Preempt the newest requests until the others' next step finds its pages."""
        while True:
            self._preempt(self.table.request(int(self.table.rows[-1])))
            rows, extend, missing = self._next_extends()
            if missing.sum() <= self._available_pages():
                return rows, extend, missing

    def _admit(self, budget: int) -> bool:
        """Start waiting requests while the step has budget for them; whether any was."""
        admitted = False
        while budget > 0 and self.waiting:
            request = self._admission.admit(self.waiting, self._limits)
            if request is None:
                break
            admitted = True
            if self._speculation is not None:
                self._speculation.start(request.row)
            if not request.high_water:
                self.counters.cached += request.start
            budget -= request.num_tokens - request.start
        return admitted

    def _preempt(self, request: Request) -> None:
        self.counters.preemptions += 1
        row = request.row
        request.token_ids = self.table.tokens[row, : self.table.num_tokens[row]].tobytes()
        self._leave_table(request, keep=True)
        self.waiting.appendleft(request)

    def _leave_table(self, request: Request, *, keep: bool) -> None:
        """Take a request out of the running table; its computed tokens stay cached unless they are in doubt."""
        table, row = self.table, request.row
        request.account_run(int(table.num_computed[row]))
        if keep:
            self._insert(request, whole_pages_only=False)
        own = table.pages_of(request)[request.num_borrowed :]
        self.pool.free(own)
        assert request.node is not None
        self.cache.unlock(request.node)
        request.node, request.num_borrowed = None, 0
        table.remove(request)

    def _insert(self, request: Request, *, whole_pages_only: bool) -> None:
        """Hand the request's computed tokens to the tree and borrow them from there from now on.

        With a part-filled last page the request must be about to leave: that page is the tree's or free afterwards.
        """
        table, size = self.table, self.pool.page_size
        num_tokens = int(table.num_computed[request.row])
        if whole_pages_only:
            num_tokens -= num_tokens % size
        if num_tokens <= request.num_borrowed * size:
            return
        ids = table.tokens[request.row, :num_tokens].tobytes()
        pages = table.page_table[request.row, : -(-num_tokens // size)]
        given = pages.copy()
        result = self.cache.insert(ids, given, request.node)
        # Pages that the tree had already: use its copies and give ours back.
        duplicates = given[request.num_borrowed : len(given) - result.num_owned]
        pages[: len(result.pages)] = result.pages
        self.pool.free(duplicates)
        self.pool.free(result.dropped)
        request.node, request.num_borrowed = result.node, len(given)

    def _take_pages(self, n: int) -> Int32Array:
        evicted = max(0, n - self.pool.num_free)
        self.counters.evicted_pages += evicted
        return take_pages(self.cache, self.pool, n)

    def _fail(self, step: Step, error: Exception) -> list[TokenOutput]:
        text = f"the model's forward pass failed: {type(error).__name__}: {error}"
        outputs = []
        for row in step.rows.tolist():
            request = self.table.request(row)
            num_tokens = int(self.table.num_tokens[row])
            self._leave_table(request, keep=False)
            outputs.append(
                self._finish(request, "error", TokenOutput(request.rid, None, error=text), num_tokens)
            )
        return outputs

    def _finish(
        self, request: Request, reason: FinishReason, last: TokenOutput, num_tokens: int
    ) -> TokenOutput:
        """Forget a request that has left; returns `last`, its last output, with how it ended."""
        del self._limits[request.rid]
        return request.finished(reason, last, num_tokens)

    def _why_impossible(self, request: Request) -> str | None:
        longest = self.config.max_model_len
        if request.num_prompt == 0:
            return "the prompt is empty: send at least one token"
        if request.num_prompt >= longest:
            return f"the prompt has {request.num_prompt} tokens, the server takes at most {longest - 1} and one of output"
        return None
