"""The scheduler over a real tree and pool, case by case."""

import pytest
from echo_model import VOCAB, EchoModel, make_pool
from tests.scheduler.rig import alone, make_scheduler, request, run, tokens

from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.scheduler import Scheduler

STOP = 7


def make_scheduler(
    page_size: int = 4,
    num_pages: int = 32,
    seqs: int = 8,
    budget: int = 16,
    max_len: int = 96,
    overlap: bool = False,
    **options: Any,
) -> Scheduler:
    """Without more room for output than for the next token, unless `reserved_output` says so."""
    pool = make_pool(page_size, num_pages)
    options = {"reserved_output": 1} | options
    config = SchedulerConfig(seqs, budget, min(max_len, num_pages * page_size), overlap, **options)
    return Scheduler(config, RadixCache(page_size), pool, EchoModel(pool))


def request(
    rid: str, ids: list[int], max_tokens: int = 4, stop: tuple[int, ...] = (), **options: Any
) -> AddRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0, stop_token_ids=stop, **options)
    return AddRequest(rid, np.asarray(ids, dtype=np.int32).tobytes(), sampling)


def alone(
    ids: list[int],
    max_tokens: int,
    max_len: int,
    stop: tuple[int, ...] = (),
    next_token: Callable[[list[int]], int] = next_token,
) -> tuple[list[int], str]:
    """What the model says to a prompt, with no engine in between."""
    out: list[int] = []
    while True:
        out.append(next_token(ids + out))
        if out[-1] in stop:
            return out, "stop"
        if len(out) == max_tokens or len(ids) + len(out) == max_len:
            return out, "length"


def run(scheduler: Scheduler, limit: int = 1000) -> dict[str, list[TokenOutput]]:
    outputs: dict[str, list[TokenOutput]] = {}
    for _ in range(limit):
        if not scheduler.has_work:
            check_idle(scheduler)
            return outputs
        for output in scheduler.step():
            outputs.setdefault(output.rid, []).append(output)
        check(scheduler)
    raise AssertionError("the scheduler does not come to an end")


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.token_id for output in outputs if output.token_id is not None]


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


class AnyLoad(RuleBasedStateMachine):
    """Random arrivals, aborts and failures; every finished request must have said what the model says alone."""

    next_token = staticmethod(next_token)

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 8]),
        pool_tokens=st.sampled_from([48, 64, 160]),
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
        page_size: int,
        pool_tokens: int,
        seqs: int,
        budget: int,
        overlap: bool,
        options: dict[str, Any],
    ) -> None:
        self.scheduler = make_scheduler(
            page_size, pool_tokens // page_size, seqs, budget, 48, overlap, **options
        )
        self.budget = budget
        self.failures = 0
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
        ids = (self.known[base % len(self.known)][:cut] + tail)[:47]
        # Others may start with what this one is about to say.
        self.known.append(ids + alone(ids, max_tokens, 48, (STOP,), self.next_token)[0])
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
            self.take(self.scheduler.step())
            assert not had_work or self.progress() != before, "work, but no progress"

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
        self.take(scheduler.step())
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
            for outputs in run(self.scheduler).values():
                self.take(outputs)
            assert not self.live


TestAnyLoad = AnyLoad.TestCase
TestAnyLoad.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_chunks_are_computed_beside_decodes() -> None:
    scheduler = make_scheduler(budget=8)
    scheduler.add(request("short", [1, 2, 3], 20))
    scheduler.step()
    scheduler.add(request("long", [9] * 40, 2))
    outputs = [scheduler.step() for _ in range(5)]
    assert all("short" in [o.rid for o in step] for step in outputs), "a stream waited for a long prompt"


def test_same_prompts_at_once_are_computed_once() -> None:
    scheduler = make_scheduler(page_size=4, budget=32)
    prompt = list(range(40))
    for i in range(4):
        scheduler.add(request(f"r{i}", [*prompt, 40 + i], 3))
    outputs = run(scheduler)
    usage = {rid: o[-1].usage for rid, o in outputs.items()}
    assert usage["r0"].computed == 41
    assert [usage[f"r{i}"].computed for i in (1, 2, 3)] == [1, 1, 1]
    for i in range(4):
        assert tokens(outputs[f"r{i}"]) == alone([*prompt, 40 + i], 3, 96)[0]


@pytest.mark.parametrize("leader_ends", ["abort", "preempt", "fail"])
def test_whoever_waited_starts_when_the_other_is_gone(leader_ends: str) -> None:
    scheduler = make_scheduler(page_size=4, budget=32)
    prompt = list(range(40))
    scheduler.add(request("first", [*prompt, 41]))
    scheduler.add(request("second", [*prompt, 42]))
    scheduler.step()
    if leader_ends == "fail":
        scheduler.runner.fail_next = True
    scheduler.step()
    (second,) = scheduler.waiting
    assert second.waits_for is not None, "the second does not wait for the first"
    if leader_ends == "abort":
        scheduler.abort("first")
    elif leader_ends == "preempt":
        scheduler.endings.preempt(scheduler.table.running()[0])
    scheduler.step()
    assert "second" in [r.rid for r in scheduler.table.running()]
    assert second.num_cached == (32 if leader_ends == "fail" else 40), (
        "what the first had computed is not used"
    )
    assert tokens(run(scheduler)["second"]) == alone([*prompt, 42], 4, 96)[0][1:]


def test_others_pass_a_request_that_waits_for_a_prefix() -> None:
    scheduler = make_scheduler(page_size=4, budget=32)
    prompt = list(range(40))
    scheduler.add(request("first", [*prompt, 41]))
    scheduler.add(request("waits", [*prompt, 42]))
    scheduler.add(request("other", [1, 1, 1]))
    scheduler.step()
    scheduler.step()
    assert {r.rid for r in scheduler.table.running()} == {"first", "other"}


def test_preempted_requests_come_back_with_what_is_still_cached() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=16, budget=16, max_len=64)
    requests = {f"r{i}": [10 + i] * 9 for i in range(4)}
    for rid, ids in requests.items():
        scheduler.add(request(rid, ids, 24))
    outputs = run(scheduler)
    assert scheduler.counters.preemptions > 0
    for rid, ids in requests.items():
        assert tokens(outputs[rid]) == alone(ids, 24, 64)[0]
        usage = outputs[rid][-1].usage
        assert usage.cached == 0
        assert usage.computed == 9
    assert scheduler.counters.computed == sum(
        u.computed + u.output - 1 + u.recomputed for u in (outputs[rid][-1].usage for rid in requests)
    )


def test_a_second_turn_reuses_the_first_to_the_token() -> None:
    scheduler = make_scheduler(page_size=16, num_pages=8, budget=64)
    first = list(range(20))
    scheduler.add(request("one", first, 5))
    reply = tokens(run(scheduler)["one"])
    scheduler.add(request("two", first + reply + [3, 3, 3], 5))
    usage = run(scheduler)["two"][-1].usage
    assert usage.cached == len(first + reply) - 1, "the last token of a reply is never computed"


@pytest.mark.parametrize("length", [95, 96, 200])
def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(length: int) -> None:
    scheduler = make_scheduler(num_pages=24, max_len=96)
    scheduler.add(request("long", [1] * length))
    (output,) = run(scheduler)["long"][-1:]
    if length == 95:
        assert output.finish_reason == "length"
    else:
        assert output.finish_reason == "error"
        assert str(length) in (output.error or "")
        assert "95" in (output.error or "")


def test_the_window_must_fit_the_pool() -> None:
    pool = make_pool(4, 8)
    with pytest.raises(ValueError, match="max_model_len \\(33\\)"):
        Scheduler(SchedulerConfig(4, 16, 33), RadixCache(4), pool, EchoModel(pool))


def test_a_rid_that_is_in_use_is_refused() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("same", [1, 2]))
    with pytest.raises(ValueError, match="same"):
        scheduler.add(request("same", [1, 2]))


@pytest.mark.parametrize("field", ["max_num_seqs", "max_num_batched_tokens", "max_model_len"])
def test_limits_must_be_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        SchedulerConfig(**{field: 0})


def test_many_stop_ids() -> None:
    scheduler = make_scheduler()
    stop = tuple(range(VOCAB))
    scheduler.add(request("stops", [1, 2, 3], 9, stop))
    scheduler.add(request("goes on", [1, 2, 3], 3))
    outputs = run(scheduler)
    assert len(outputs["stops"]) == 1
    assert outputs["stops"][0].finish_reason == "stop"
    assert len(outputs["goes on"]) == 3
