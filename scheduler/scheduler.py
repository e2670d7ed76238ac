"""Continuous batching without phases: schedule, launch, commit.

Each step gives every running request up to all the tokens that it has and has not computed: one for a request that
decodes, a chunk for one whose prompt is long. Requests that need a single token come first, so that long prompts
do not hold up running streams; then longest running first, within the step's budget of tokens.

With `overlap` a step is made and launched while the one before runs. Tokens that are still to be sampled are then
expected: counted, but known only to the device, which feeds them to the next step. That a request has ended is
noticed one step late; what the step in flight computes for it is thrown away, and its row, lock and pages go when no
step in flight uses them. Without overlap the same code runs with nothing in flight between steps.
"""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from deeproot.engine.batch import Int64Array, Sampled
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.admission import Admission
from deeproot.scheduler.arrivals import Arrivals
from deeproot.scheduler.claims import Claims
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.constraints import Constraints, errors_of
from deeproot.scheduler.endings import Endings
from deeproot.scheduler.flight import Failed, Flight, Forward, Step
from deeproot.scheduler.holdings import Holdings
from deeproot.scheduler.messages import AddRequest, TokenOutput
from deeproot.scheduler.outputs import Landed, prompt_outputs, token_outputs
from deeproot.scheduler.pace import Pace
from deeproot.scheduler.preemption import choose_victim
from deeproot.scheduler.rate import PrefillRate
from deeproot.scheduler.request import Request
from deeproot.scheduler.speculation import Speculation
from deeproot.scheduler.stats import Counters
from deeproot.scheduler.table import RunningTable
from deeproot.scheduler.waiting import WaitingRequests

_GRACE_STEPS = 4
"""Steps' budgets by which later requests may in any case be computed before one; see `WaitingRequests`."""
_FIRST_RATE = 1000.0
"""Tokens of prompts a second, before any have been computed."""

_NO_NUMBERS = (
    "the model computed logits that are no numbers (NaN or infinite), so nothing can be sampled from them: if this happens "
    "to other requests too, the weights or the dtype are to blame"
)


class Scheduler:
    """Runs requests over one model, pool and cache. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: RadixCache,
        pool: KVPool,
        runner: Forward,
        constraints: Constraints | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `constraints`, requests with a grammar are refused. clock: seconds, from any start."""
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
        self.counters = Counters()
        self.prefill_rate = PrefillRate()
        self.pace = Pace(config.max_itl_s)
        self.clock = clock
        grace = _GRACE_STEPS * config.max_num_batched_tokens
        self.waiting = WaitingRequests(config.policy, config.patience, grace, self._token_s)
        self._admission = Admission(cache, pool, self.table, self.waiting, config.reserved_output)
        self.arrivals = Arrivals(
            config.max_model_len, pool.page_size, constraints, self.counters, self.waiting, self._enqueue
        )
        self.claims = Claims(cache, lambda: self.clock(), heeded=config.eviction == "hints")
        self._constraints = constraints
        self.flights: deque[Flight] = deque()
        """Launched steps, oldest first."""
        self._holdings = Holdings(cache, pool, self.table, self.flights, self.claims)
        self.endings = Endings(self.table, self._holdings, self.flights, self.arrivals)
        self._speculation = Speculation(config.speculation, self.table)

    def add(self, message: AddRequest) -> None:
        """Take a request; one that can never run is answered with an error by the next step.

        Raises ValueError if a request of the same rid has not ended.
        """
        self.arrivals.add(message)

    def abort(self, rid: str) -> TokenOutput | None:
        """End a request; None if it is not here (any more)."""
        found = self.arrivals.withdraw(rid)
        if found is not None:
            return self.endings.finish(found, "abort", TokenOutput(rid, None), found.num_tokens)
        for request in self.table.running():
            if request.rid == rid:
                return self.endings.end(request, "abort", TokenOutput(rid, None))
        return None

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do; a request whose grammar is being compiled is nothing yet."""
        return bool(len(self.table) or self.flights or self.arrivals.has_work)

    def requests(self) -> list[Request]:
        """All that have not ended."""
        return [*self.arrivals.requests(), *self.table.running()]

    def step(self) -> list[TokenOutput]:
        """Launch the next step, and book as many as may not be in flight beside it: all, if there is no overlap.

        Returns the outputs of what was booked. A failing step ends the requests that were in it.
        """
        outputs = self.arrivals.settle()
        step = self.schedule()
        launched = step is not None and self._launch(step)
        allowed = 1 if launched and self.config.overlap else 0
        while len(self.flights) > allowed:
            outputs += self._land()
        return outputs

    def drain(self) -> list[TokenOutput]:
        """Wait for all steps in flight and book them."""
        outputs = []
        while self.flights:
            outputs += self._land()
        return outputs

    def schedule(self) -> Step | None:
        """Admit what fits, find pages and build the next batch; None when there is nothing to compute now."""
        self.claims.tick()
        rows, extend, missing = self._next_extends()
        if np.add.reduce(missing) > self._holdings.num_available:
            if self.flights:
                # Whoever is preempted must not be in flight; and what is may bring pages back.
                return None
            rows, extend, missing = self._preempt_until_it_fits()
        elif self.waiting and self._admit(self._budget(rows, extend) - int(extend.sum())):
            rows, extend, missing = self._next_extends()
        if not len(rows):
            return None
        num_drafted = self._speculation.draft(
            rows, extend, self.config.max_num_batched_tokens, self._holdings.num_available
        )
        if num_drafted is not None:
            extend = extend + num_drafted
            missing = self.table.missing_pages(rows, self.table.num_scheduled[rows] + extend)
        num_missing = int(np.add.reduce(missing))
        if num_missing:
            self.counters.evicted_pages += max(0, num_missing - self.pool.num_free)
            self.table.give_pages(rows, missing, self._holdings.take(num_missing))
        batch, sampling_rows = self.table.build_batch(rows, extend, num_drafted)
        step = Step(rows, extend, sampling_rows, batch, num_drafted)
        self.table.expect(step)
        return step

    def _launch(self, step: Step) -> bool:
        """Whether the step runs; if not, its flight says why when it is landed."""
        launched = self.clock()
        try:
            self.flights.append(Flight(step, self.runner.launch(step.batch), launched))
        except Exception as error:  # of a model or a device: the step's requests end, others go on
            self.flights.append(Flight(step, Failed(error), launched))
            return False
        return True

    def _land(self) -> list[TokenOutput]:
        """Wait for the oldest step in flight and book it."""
        flight = self.flights.popleft()
        try:
            sampled = flight.pending.result()
        except Exception as error:  # as in `_launch`
            text = f"the model's forward pass failed: {type(error).__name__}: {error}"
            outputs = self.endings.fail_all(flight.step, text)
        else:
            self.pace.landed(flight.step, self.prefill_rate.landed(flight, self.clock()))
            outputs = self._commit(flight.step, sampled)
        for pages in flight.frees:
            self.pool.free(pages)
        self.endings.settle()
        return outputs

    def _commit(self, step: Step, sampled: Sampled) -> list[TokenOutput]:
        """Book a finished step: computed tokens, cache, new tokens, ends."""
        table = self.table
        self.counters.steps += 1
        self.counters.computed += len(step.batch.input_ids)
        landed = Landed.of(step, sampled)
        if self.endings.leaving:
            landed = landed.without([request.row for request in self.endings.leaving])
            self.counters.surplus += len(step.batch.input_ids) - landed.num_computed
        table.num_computed[landed.rows] += landed.certain
        unsound = landed.unsound()
        if len(step.batch.input_ids) > len(step.rows):
            # What requests have computed that is no number must not be found by others.
            in_doubt = {*landed.sampling_rows[unsound].tolist(), *landed.unsound_chunks.tolist()}
            for row in landed.rows[landed.certain > 1].tolist():
                if row not in in_doubt:
                    self._holdings.insert(table.request(row), whole_pages_only=True)
        outputs = prompt_outputs(table, landed)
        appended = self._speculation.append(landed, self.counters)
        new = token_outputs(table, appended, landed)
        self.counters.output += len(new)
        errors = (
            errors_of(table.sampling.constraints, landed.sampling_rows) if table.sampling.constraints else {}
        )
        errors |= dict.fromkeys(unsound, _NO_NUMBERS)
        for i in sorted({*(appended.stopped | appended.full).nonzero()[0].tolist(), *errors}):
            last = int(appended.last[i])
            request = table.request(int(landed.sampling_rows[i]))
            if i in errors:
                output = TokenOutput(request.rid, None, error=errors[i])
                new[last] = self.endings.end(request, "error", output, keep=i not in unsound)
            else:
                new[last] = self.endings.end(request, "stop" if appended.stopped[i] else "length", new[last])
        if self._constraints is not None and table.sampling.constraints:
            self._constraints.follow(table.sampling.constraints, appended.rows, new)
        return outputs + new + [self.endings.fail(row, _NO_NUMBERS) for row in landed.unsound_chunks.tolist()]

    def _next_extends(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """What running requests compute next: rows, their tokens (one or more), the pages that they lack for them."""
        table = self.table
        rows = table.rows_to_go_on() if self.flights else table.rows
        computed = table.num_scheduled[rows]
        extend = table.num_expected[rows] - computed
        total = int(np.add.reduce(extend))
        if total > len(rows):  # prompts
            budget = self._budget(rows, extend)
            if total > budget:
                order = np.argsort(extend > 1, kind="stable")
                rows, computed, wanted = rows[order], computed[order], extend[order]
                extend = np.clip(budget - (np.cumsum(wanted) - wanted), 0, wanted)
                gets = extend > 0
                rows, computed, extend = rows[gets], computed[gets], extend[gets]
        return rows, extend, table.missing_pages(rows, computed + extend)

    def _budget(self, rows: Int64Array, extend: Int64Array) -> int:
        """Tokens of a step in which these rows go on with so many tokens, or fewer."""
        most = self.config.max_num_batched_tokens
        num_writing = int((extend == 1).sum())
        if not num_writing:
            return most
        prompts = self.table.num_scheduled[rows[extend > 1]]
        return num_writing + self.pace.most(most - num_writing, int(prompts.max(initial=0)))

    def _preempt_until_it_fits(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Preempt requests until the others' next step finds its pages."""
        while True:
            self.counters.preemptions += 1
            self.endings.preempt(choose_victim(self.table))
            rows, extend, missing = self._next_extends()
            if missing.sum() <= self._holdings.num_available:
                return rows, extend, missing

    def _enqueue(self, request: Request) -> None:
        self.waiting.add(request, self.clock(), self._admission.num_missing(request))

    def _token_s(self) -> float:
        return 1 / (self.prefill_rate.tokens_per_second or _FIRST_RATE)

    def _admit(self, budget: int) -> bool:
        """Start waiting requests while the step has budget for them; whether any was."""
        admitted = False
        if budget > 0 and len(self.waiting) > 1:
            self._admission.look_anew()
        while budget > 0 and self.waiting:
            request = self._admission.admit(self.arrivals.limits, self.clock())
            if request is None:
                break
            admitted = True
            self.claims.started(request)
            self._speculation.start(request.row)
            if not request.high_water:
                self.counters.cached += request.start
            budget -= request.num_tokens - request.start
        return admitted
