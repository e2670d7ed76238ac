"""Answers about a running engine, against what its parts say when they are asked directly."""

import msgspec
import numpy as np
import pytest

from deeproot.scheduler.answering import answer
from deeproot.scheduler.messages import AddRequest
from deeproot.scheduler.questions import ProbeAnswer, ProbeQuestion, TreeAnswer, TreeQuestion
from deeproot.scheduler.rate import PrefillRate
from deeproot.scheduler.scheduler import Scheduler

from .rig import make_scheduler, request, run, tokens


def probe(scheduler: Scheduler, *prompts: list[int], namespace: bytes = b"") -> tuple[int, ...]:
    ids = tuple(np.asarray(prompt, dtype=np.int32).tobytes() for prompt in prompts)
    told = answer(scheduler, ProbeQuestion(ids, namespace))
    assert isinstance(told, ProbeAnswer)
    return told.cached


def tree(scheduler: Scheduler, **fields: object) -> TreeAnswer:
    told = answer(scheduler, msgspec.convert({"type": "tree", **fields}, TreeQuestion))
    assert isinstance(told, TreeAnswer)
    return told


def in_namespace(message: AddRequest, namespace: bytes) -> AddRequest:
    return msgspec.structs.replace(message, namespace=namespace)


def test_what_is_probed_is_what_a_request_then_finds() -> None:
    scheduler = make_scheduler(page_size=4)
    first = list(range(20))
    assert probe(scheduler, first, [1]) == (0, 0)
    scheduler.add(in_namespace(request("a", first, 3), b"a"))
    said = tokens(run(scheduler)["a"])
    longer = first + said + [3, 3]
    told = probe(scheduler, longer, first[:7], namespace=b"a")
    assert told == (len(first + said) - 1, 7), "all but the reply's last token"
    assert probe(scheduler, longer, first[:7]) == (0, 0), "another tenant's"
    scheduler.add(in_namespace(request("b", longer, 1), b"a"))
    usage = run(scheduler)["b"][-1].usage
    assert usage is not None
    assert usage.cached == told[0]


def test_a_probe_does_not_count_as_a_use() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=24)
    for rid, first in (("old", 1), ("new", 2)):
        scheduler.add(request(rid, [first] * 9, 1))
        run(scheduler)
    order = [node.used for node in scheduler.cache.nodes()]
    for _ in range(3):
        assert probe(scheduler, [1] * 9) == (9,)
    assert [node.used for node in scheduler.cache.nodes()] == order
    scheduler.pool.free(scheduler.cache.evict(3))
    assert probe(scheduler, [1] * 9, [2] * 9) == (0, 9)


@pytest.mark.parametrize("most", [1, 3, 100])
def test_the_tree_is_told_from_its_roots_and_bounded(most: int) -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64)
    for i in range(4):
        rid, prompt = str(i), [*range(12), 30 + i, 30 + i, 30 + i, 30 + i, 1]
        scheduler.add(in_namespace(request(rid, prompt, 1), b"a"))
        scheduler.add(in_namespace(request(f"other {rid}", prompt, 1), b"b"))
    run(scheduler)
    told = tree(scheduler, max_nodes=most)
    assert len(told.nodes) == min(most, told.num_nodes)
    assert told.num_nodes == sum(1 for _ in scheduler.cache.nodes())
    for place, node in enumerate(told.nodes):
        if node.parent is None:
            assert node.start == 0
        else:
            parent = told.nodes[node.parent]
            assert node.parent < place
            assert node.start == parent.start + parent.num_tokens
            assert node.namespace == parent.namespace
    of_a = tree(scheduler, namespace=b"a")
    assert {node.namespace for node in of_a.nodes} == {b"a"}
    (top,) = [node for node in of_a.nodes if node.parent is None]
    assert top.first_ids == np.arange(12, dtype=np.int32).tobytes()
    assert (top.num_tokens, top.num_pages, top.num_children, top.locks) == (12, 3, 4, 0)


def test_the_rate_is_that_of_the_latest_prompts() -> None:
    rate = PrefillRate()
    assert rate.tokens_per_second is None
    rate.note(1000, 0.5)
    assert rate.tokens_per_second == pytest.approx(2000)
    for _ in range(200):
        rate.note(1000, 0.1)
    assert rate.tokens_per_second == pytest.approx(10_000, rel=0.02)


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_are_timed_by_the_clock_and_only_those_with_prompts(overlap: bool) -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64, budget=16, overlap=overlap)
    time = 0.0

    def clock() -> float:
        nonlocal time
        time += 1.0
        return time

    scheduler.clock = clock
    scheduler.add(request("a", [*range(40)] + [1] * 8, 20))
    while scheduler.counters.computed < 48:
        scheduler.step()
    measured = scheduler.prefill_rate.tokens_per_second
    assert measured is not None
    run(scheduler)
    assert scheduler.prefill_rate.tokens_per_second == measured, "a step that only decodes has been counted"
    # A second a look at the clock: from launch to landing one, with overlap the next step's launch as well.
    assert measured == pytest.approx(8 if overlap else 16)
