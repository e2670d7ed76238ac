"""Random arrivals, aborts and failures, which several tests extend."""

from dataclasses import dataclass
from typing import Any

import msgspec
from echo_model import next_token
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.scheduler.rig import alone, make_scheduler, request

from deeproot.scheduler.config import POLICIES
from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.messages import Hints, TokenOutput

STOP = 7

prompts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@dataclass(frozen=True)
class Pool:
    """Of any size that holds one request of `max_len` tokens."""

    page_size: int
    max_len: int
    spare: int
    """Pages beyond those of the one request."""

    @property
    def num_pages(self) -> int:
        return -(-self.max_len // self.page_size) + self.spare


pools = st.builds(
    Pool,
    page_size=st.sampled_from([1, 2, 3, 4, 8]),
    max_len=st.sampled_from([5, 17, 48]),
    spare=st.just(0) | st.integers(0, 8) | st.integers(0, 112),
)


class AnyLoad(RuleBasedStateMachine):
    """Random arrivals, aborts and failures, in pools of any size: every step gets on, whoever is preempted has written since
    the last time, and every finished request must have said what the model says alone."""

    next_token = staticmethod(next_token)

    @initialize(
        pool=pools,
        seqs=st.integers(1, 6),
        budget=st.integers(6, 24),
        overlap=st.booleans(),
        options=st.fixed_dictionaries(
            {
                "policy": st.sampled_from(POLICIES),
                "reserved_output": st.sampled_from([1, 6, 100]),
                "patience": st.sampled_from([0.0, 1.0]),
                "max_itl_s": st.sampled_from([None, 1e-6, 10.0]),
            }
        ),
    )
    def start(
        self,
        pool: Pool,
        seqs: int,
        budget: int,
        overlap: bool,
        options: dict[str, Any],
    ) -> None:
        self.scheduler = make_scheduler(
            pool.page_size, pool.num_pages, seqs, budget, pool.max_len, overlap, **options
        )
        self.budget = budget
        self.failures = self.preemptions = 0
        self.live: dict[str, tuple[list[int], int]] = {}
        self.said: dict[str, list[int]] = {}
        self.known: list[list[int]] = [[]]
        self.count = 0

    @rule(
        base=st.integers(0, 99),
        cut=st.integers(0, 60),
        tail=prompts,
        max_tokens=st.integers(1, 30),
        step_by_step=st.booleans(),
        who=st.fixed_dictionaries(
            {
                "priority": st.integers(0, 1),
                "tenant": st.sampled_from([b"", b"a"]),
                "hints": st.sampled_from([None, Hints(session=b"s")]),
            }
        ),
    )
    def arrive(
        self,
        base: int,
        cut: int,
        tail: list[int],
        max_tokens: int,
        step_by_step: bool,
        who: dict[str, Any],
    ) -> None:
        longest = self.scheduler.config.max_model_len
        ids = (self.known[base % len(self.known)][:cut] + tail)[: longest - 1]
        # Others may start with what this one is about to say.
        self.known.append(ids + alone(ids, max_tokens, longest, (STOP,), self.next_token)[0])
        self.count += 1
        rid = str(self.count)
        self.live[rid], self.said[rid] = (ids, max_tokens), []
        message = request(rid, ids, max_tokens, (STOP,), speculate=step_by_step)
        self.scheduler.add(msgspec.structs.replace(message, **who))
        list(self.scheduler.waiting)[-1].step_by_step = step_by_step

    @rule(lag=st.integers(0, 2))
    def results_come(self, lag: int) -> None:
        """At once, when the next step is launched, or only when they are asked for."""
        self.scheduler.runner.lag = lag

    @rule()
    def device_goes_on(self) -> None:
        self.scheduler.runner.compute_one()

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            had_work, before = self.scheduler.has_work, self.progress()
            self.one_step()
            assert not had_work or self.progress() != before, "work, but no progress"

    def one_step(self) -> None:
        running = {one: one.tokens_when_preempted for one in self.scheduler.table.running()}
        outputs = self.scheduler.step()
        for one in self.scheduler.waiting:
            if one in running:
                self.preemptions += 1
                assert one.num_tokens > running[one], "preempted twice without having written anything"
        self.take(outputs)

    def progress(self) -> tuple[int, int]:
        return self.scheduler.counters.computed, len(self.scheduler.flights)

    @precondition(lambda self: self.live)
    @rule(which=st.integers(0, 99))
    def abort(self, which: int) -> None:
        rid = sorted(self.live)[which % len(self.live)]
        output = self.scheduler.abort(rid)
        assert output is not None
        assert output.finish_reason == "abort"
        assert output.usage is not None
        assert output.usage.output == len(self.said[rid])
        del self.live[rid]

    @rule(late=st.booleans())
    def forward_fails(self, late: bool) -> None:
        scheduler, model = self.scheduler, self.scheduler.runner
        running = {r.rid for r in scheduler.table.running()}
        self.failures += 1
        model.fail_next, model.fail_late = not late, late
        self.one_step()
        launched = not (model.fail_next or model.fail_late)
        model.fail_next = model.fail_late = False
        if late:
            self.take(scheduler.drain())
        if launched and not scheduler.config.overlap:
            # One that the step has preempted waits, and lives on.
            still = {r.rid for r in scheduler.table.running()}
            assert running.isdisjoint(still) or len(running) > self.budget

    def take(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            if output.finish_reason == "error":
                assert "planned failure" in (output.error or "")
                assert self.failures, "a request failed though nothing was to"
                del self.live[output.rid]
                continue
            assert output.token_id is not None
            self.said[output.rid].append(output.token_id)
            if output.finish_reason is None:
                continue
            ids, max_tokens = self.live.pop(output.rid)
            longest = self.scheduler.config.max_model_len
            wanted, reason = alone(ids, max_tokens, longest, (STOP,), self.next_token)
            assert self.said[output.rid] == wanted
            assert output.finish_reason == reason
            usage = output.usage
            assert usage is not None
            assert (usage.prompt, usage.output) == (len(ids), len(wanted))
            assert usage.cached + usage.computed == usage.prompt

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "scheduler"):
            check(self.scheduler)
            assert self.scheduler.runner.largest_step <= self.budget

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            self.failures = 0
            for _ in range(2000):
                if not self.scheduler.has_work:
                    break
                self.one_step()
                check(self.scheduler)
            check_idle(self.scheduler)
            assert not self.live
            assert self.preemptions == self.scheduler.counters.preemptions
