"""Runs a load through the product's own scheduler, tree and pool, with time that a cost model says passes.

What is real: order, admission, pages, preemption, the tree. What is made: how long a step takes, and the tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from itertools import count

import torch

from deeproot.bench.simulator.clock import Clock, CostRunner, Script, StepCost
from deeproot.bench.simulator.load import Call, Source
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.messages import AddRequest, Hints, SamplingParams, TokenOutput
from deeproot.scheduler.request import Request
from deeproot.scheduler.scheduler import Scheduler

Beginnings = Iterable[tuple[float, Source]]


@dataclass(slots=True)
class Record:
    """What became of one request. Seconds and tokens."""

    kind: str
    session: str | None
    came: float
    num_prompt: int
    allowance: int
    """How much later requests were allowed to have computed before it, when it came."""
    started: float = 0.0
    num_computed: int = 0
    """Tokens of the prompt that it computed."""
    first_token: float = 0.0
    ended: float = 0.0
    gaps: list[float] = field(default_factory=list)
    """Between its tokens."""


class Simulation:
    """One scheduler and everything that is sent to it."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_pages: int,
        page_size: int = 64,
        cost: StepCost | None = None,
        check_every: int = 1,
    ) -> None:
        """check_every: steps from one check of all invariants to the next."""
        self.clock = Clock()
        self._script = Script()
        self.runner = CostRunner(self.clock, cost or StepCost(), self._script)
        pool = KVPool(KVLayout(0, 1, 1, page_size, torch.float32), num_pages)
        self.scheduler = Scheduler(config, RadixCache(page_size), pool, self.runner, clock=self.clock)
        self.records: list[Record] = []
        self.num_steps = 0
        self._check_every = check_every
        self._ties = count()
        self._due: list[tuple[float, int, Call, Source]] = []
        self._sources: dict[str, Source] = {}
        self._requests: dict[str, tuple[Request, Record]] = {}
        """Those that have not ended."""
        self._waiting: set[str] = set()
        """Those that have not started."""

    def run(self, loads: Iterable[Beginnings], most: int) -> None:
        """Until `most` requests have been sent and all are answered; ends with a check that nothing is left."""
        beginnings = iter(merge(*loads, key=lambda one: one[0]))
        following = next(beginnings, None)
        while self.scheduler.has_work or ((following or self._due) and len(self.records) < most):
            if not self.scheduler.has_work:
                times = [following[0]] if following else []
                self.clock.now = max(self.clock.now, min([*times, *(due[0] for due in self._due[:1])]))
            while following is not None and following[0] <= self.clock.now:
                self._go_on(following[1], None)
                following = next(beginnings, None)
            while self._due and self._due[0][0] <= self.clock.now and len(self.records) < most:
                _, _, call, source = heappop(self._due)
                self._send(call, source)
            self._step()
        check_idle(self.scheduler)

    def _go_on(self, source: Source, ended: float | None) -> None:
        """Take a source's next call, if it has one."""
        try:
            call = next(source) if ended is None else source.send(ended)
        except StopIteration:
            return
        heappush(self._due, (call.time_s, next(self._ties), call, source))

    def _send(self, call: Call, source: Source) -> None:
        seed = len(self.records)
        rid = str(seed)
        self._script.set(seed, len(call.prompt), call.answer)
        sampling = SamplingParams(max_tokens=len(call.answer), temperature=0.0, seed=seed)
        self.scheduler.add(
            AddRequest(
                rid,
                call.prompt.tobytes(),
                sampling,
                tenant=call.tenant,
                priority=call.priority,
                hints=None if call.session is None else Hints(session=call.session.encode()),
            )
        )
        *_, request = self.scheduler.waiting
        record = Record(call.kind, call.session, call.time_s, len(call.prompt), request.allowance)
        self.records.append(record)
        self._sources[rid] = source
        self._requests[rid] = request, record
        self._waiting.add(rid)

    def _step(self) -> None:
        before = self.clock.now
        outputs = self.scheduler.step()
        self.num_steps += 1
        here = {output.rid for output in outputs}.union(one.rid for one in self.scheduler.table.running())
        for rid in here & self._waiting:
            request, record = self._requests[rid]
            if request.num_cached is None:
                raise RuntimeError(f"request {rid} runs and was never started")
            record.started, record.num_computed = before, request.num_prompt - request.num_cached
        self._waiting -= here
        for output in outputs:
            self._note(output)
        if self.num_steps % self._check_every == 0:
            check(self.scheduler)

    def _note(self, output: TokenOutput) -> None:
        _, record = self._requests[output.rid]
        now = self.clock.now
        if output.token_id is not None:
            if record.first_token:
                record.gaps.append(now - record.ended)
            else:
                record.first_token = now
            record.ended = now
        if output.finish_reason is not None:
            if output.finish_reason != "length":
                raise RuntimeError(f"request {output.rid} ended in {output.finish_reason}: {output.error}")
            del self._requests[output.rid]
            self._script.drop(int(output.rid))
            self._go_on(self._sources.pop(output.rid), now)
