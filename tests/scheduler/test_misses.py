"""What the scheduler says about prompts that were not cached, and whose cache is whose."""

import numpy as np
import pytest

from deeproot.scheduler.messages import AddRequest, SamplingParams, Usage
from deeproot.scheduler.scheduler import Scheduler

from .rig import alone, make_scheduler, run, tokens

PROMPT = list(range(40))


def request(rid: str, ids: list[int], seen: int = 0, namespace: bytes = b"") -> AddRequest:
    sampling = SamplingParams(max_tokens=3, temperature=0.0, seed=0)
    data = np.asarray(ids, dtype=np.int32).tobytes()
    return AddRequest(rid, data, sampling, seen=seen, namespace=namespace)


def usage_of(scheduler: Scheduler, rid: str, ids: list[int], seen: int = 0, namespace: bytes = b"") -> Usage:
    scheduler.add(request(rid, ids, seen, namespace))
    (output,) = run(scheduler)[rid][-1:]
    assert output.usage is not None
    return output.usage


def evict(scheduler: Scheduler, num_pages: int) -> None:
    scheduler.pool.free(scheduler.cache.evict(num_pages))


@pytest.mark.parametrize("evicted_pages", [0, 1, 5, 11])
def test_evicted_tokens_are_told_from_those_that_were_never_cached(evicted_pages: int) -> None:
    scheduler = make_scheduler(page_size=4)
    usage_of(scheduler, "first", PROMPT)
    evict(scheduler, evicted_pages)
    # The first left 42 tokens, its last page part-filled; tokens 30 to 49 are others now.
    ids = [*PROMPT[:30], *range(49, 29, -1)]
    usage = usage_of(scheduler, "second", ids, seen=30)
    left = min(30, (11 - evicted_pages) * 4 if evicted_pages else 42)
    assert (usage.cached, usage.evicted) == (left, 30 - left)


def test_nothing_is_looked_up_for_those_who_do_not_ask() -> None:
    scheduler = make_scheduler(page_size=4)
    usage_of(scheduler, "first", PROMPT)
    evict(scheduler, 11)
    assert usage_of(scheduler, "second", PROMPT).evicted == 0


def test_what_was_never_computed_was_not_evicted() -> None:
    scheduler = make_scheduler(page_size=4)
    usage_of(scheduler, "other", [9] * 40)
    evict(scheduler, 11)
    usage = usage_of(scheduler, "first", PROMPT, seen=39)
    assert (usage.cached, usage.evicted) == (0, 0)


def test_no_hit_crosses_namespaces() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64)
    for name in (b"", b"a", b"b"):
        assert usage_of(scheduler, f"cold {name!r}", PROMPT, namespace=name).cached == 0
        assert usage_of(scheduler, f"warm {name!r}", PROMPT, namespace=name).cached == 39
    evict(scheduler, 64)
    usage_of(scheduler, "again", PROMPT, namespace=b"a")
    evict(scheduler, 64)
    assert usage_of(scheduler, "c", PROMPT, seen=39, namespace=b"c").evicted == 0


def test_nobody_waits_for_a_prefix_in_another_namespace() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64, budget=32)
    scheduler.add(request("first", [*PROMPT, 41], namespace=b"a"))
    scheduler.add(request("second", [*PROMPT, 42], namespace=b"b"))
    scheduler.step()
    scheduler.step()
    assert [r.rid for r in scheduler.table.running()] == ["first", "second"]
    outputs = run(scheduler)
    assert tokens(outputs["second"]) == alone([*PROMPT, 42], 3, 96)[0]
    assert outputs["second"][-1].usage.cached == 0
