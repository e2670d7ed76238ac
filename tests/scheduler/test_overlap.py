"""Steps made while one is in flight. That nothing goes wrong under any load is `AnyLoad`'s to find out; here is what
overlap must do at all."""

import numpy as np
import pytest
from tests.scheduler.rig import alone, make_scheduler, request, run, tokens

from deeproot.scheduler.invariants import check, check_idle
from deeproot.scheduler.messages import TokenOutput
from deeproot.scheduler.scheduler import Scheduler


def stop_after(ids: list[int], n: int) -> int:
    """The token that the model says `n` tokens after `ids`, and not before."""
    said = alone(ids, n, 96)[0]
    assert said[-1] not in said[:-1], "choose another prompt"
    return said[-1]


def load(scheduler: Scheduler) -> dict[str, list[TokenOutput]]:
    """More requests than the pool holds, some with a common start, ended by stop ids and by length."""
    rng = np.random.default_rng(0)
    start = rng.integers(0, 50, 14).tolist()
    for i in range(12):
        ids = (start if i % 2 else []) + rng.integers(0, 50, 3 + i).tolist()
        scheduler.add(request(f"r{i}", ids, 8 + 3 * i, (7, 8) if i % 3 == 0 else ()))
    return run(scheduler)


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_overlap_changes_no_token(lag: int) -> None:
    plain = make_scheduler(num_pages=24, budget=16, max_len=64)
    ahead = make_scheduler(num_pages=24, budget=16, max_len=64, overlap=True)
    ahead.runner.lag = lag
    expected, outputs = load(plain), load(ahead)
    assert plain.counters.preemptions, "the load is to be more than the pool holds"
    assert ahead.counters.preemptions
    assert ahead.runner.num_fed > plain.counters.output / 2, "hardly any step was made ahead"
    for rid, said in expected.items():
        assert tokens(outputs[rid]) == tokens(said)
        assert outputs[rid][-1].finish_reason == said[-1].finish_reason
    assert ahead.counters.output == plain.counters.output


def test_a_step_is_launched_before_the_last_one_is_waited_for() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.runner.lag = 2
    scheduler.add(request("one", [1, 2, 3], 6))
    assert scheduler.step() == [], "the first step was waited for though another could be made"
    while scheduler.table.num_expected[scheduler.table.rows[0]] < 9:
        before = scheduler.runner.num_fed
        (output,) = scheduler.step()
        assert output.token_id is not None
        assert len(scheduler.flights) == 1
        assert scheduler.flights[0].step.batch.fed is not None, "the next step was not fed on the device"
        assert scheduler.runner.num_fed >= before
        check(scheduler)


def test_an_end_by_length_is_foreseen_and_one_by_a_stop_id_costs_one_token() -> None:
    prompt = [1, 2, 3]
    for stop, surplus in (((), 0), ((stop_after(prompt, 6),), 1)):
        scheduler = make_scheduler(overlap=True)
        scheduler.add(request("one", prompt, 6 if not stop else 20, stop))
        said = tokens(run(scheduler)["one"])
        assert said == alone(prompt, 6, 96)[0]
        assert scheduler.counters.surplus == surplus
        assert scheduler.counters.computed == len(prompt) + 5 + surplus


def test_who_needs_the_last_token_on_the_host_is_not_scheduled_ahead() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add(request("with mask", [1, 2, 3], 8))
    list(scheduler.waiting)[-1].step_by_step = True
    assert tokens(run(scheduler)["with mask"]) == alone([1, 2, 3], 8, 96)[0]
    assert scheduler.runner.num_fed == 0
    scheduler.add(request("with mask", [1, 2, 3], 8))
    list(scheduler.waiting)[-1].step_by_step = True
    scheduler.add(request("without", [4, 5], 8))
    outputs = run(scheduler)
    assert tokens(outputs["with mask"]) == alone([1, 2, 3], 8, 96)[0]
    assert tokens(outputs["without"]) == alone([4, 5], 8, 96)[0]
    assert scheduler.runner.num_fed > 0, "one request that needs its tokens held back the other"


@pytest.mark.parametrize("late", [False, True])
def test_a_failing_step_ends_only_its_own_requests(late: bool) -> None:
    scheduler = make_scheduler(overlap=True, budget=8)
    scheduler.runner.lag = 2
    scheduler.add(request("in it", [1, 2, 3], 20))
    scheduler.step()
    scheduler.runner.fail_next, scheduler.runner.fail_late = not late, late
    outputs = scheduler.step()
    scheduler.add(request("after it", [4, 5, 6], 5))
    outputs += scheduler.step()
    errors = [output for output in outputs if output.finish_reason == "error"]
    assert [output.rid for output in errors] == ["in it"]
    assert [output.token_id for output in outputs if output not in errors] == alone([1, 2, 3], 1, 96)[0]
    assert tokens(run(scheduler)["after it"]) == alone([4, 5, 6], 5, 96)[0]


def test_an_abort_takes_effect_at_once_and_frees_when_the_step_in_flight_is_done() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.runner.lag = 2
    scheduler.add(request("one", [1, 2, 3], 20))
    said = scheduler.step() + scheduler.step()
    output = scheduler.abort("one")
    assert output is not None
    assert output.usage is not None
    assert output.usage.output == len(said)
    check(scheduler)
    assert scheduler.endings.leaving, "its pages are free while a step writes them"
    assert scheduler.abort("one") is None
    scheduler.add(request("one", [1, 2, 3], 2))
    assert tokens(run(scheduler)["one"]) == alone([1, 2, 3], 2, 96)[0]


def test_drain_books_what_is_in_flight() -> None:
    scheduler = make_scheduler(overlap=True)
    scheduler.add(request("one", [1, 2, 3], 2))
    scheduler.step()
    assert tokens(scheduler.drain()) == alone([1, 2, 3], 1, 96)[0]
    scheduler.abort("one")
    check_idle(scheduler)


def test_pages_that_the_tree_has_already_stay_until_the_step_that_reads_them_is_done() -> None:
    scheduler = make_scheduler(overlap=True, budget=8)
    scheduler.runner.lag = 2
    first = [1, 2, 3, 4]
    reply = alone(first, 12, 96)[0]
    second = [*first, *reply, *[5] * 20]
    scheduler.add(request("first", first, 12))
    for _ in range(10):
        scheduler.step()
    scheduler.add(request("second", second, 5))
    freed_late = 0
    while scheduler.has_work:
        for output in scheduler.step():
            if output.finish_reason and output.rid == "second":
                assert output.usage is not None
                assert output.usage.cached == len(first), "the second is to compute what the first will leave"
        freed_late += sum(len(pages) for flight in scheduler.flights for pages in flight.frees)
        check(scheduler)
    assert freed_late, "no page was in the tree already"
