"""The scheduler over a real tree and pool, case by case."""

import pytest
from echo_model import VOCAB, EchoModel, make_pool
from tests.scheduler.rig import alone, make_scheduler, request, run, tokens

from deeproot.engine.radix import RadixCache
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.scheduler import Scheduler


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
