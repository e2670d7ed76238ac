"""The order of waiting requests: each rule by itself, and what bounds how long one is overtaken."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.waiting_queue import GRACE, add, make, order, queue

from deeproot.scheduler.config import POLICIES, Policy


def test_by_arrival() -> None:
    waiting = queue("fcfs")
    for rid, size in (("long", 500), ("short", 5), ("middle", 50)):
        add(waiting, make(rid, size))
    assert order(waiting) == ["long", "short", "middle"]
    assert order(waiting, n=2) == ["long", "short"]
    assert [request.rid for request in waiting] == ["long", "short", "middle"]


def test_by_the_longest_cached_prefix() -> None:
    waiting = queue("lpm")
    add(waiting, make("cold", 500), num_missing=500)
    add(waiting, make("short", 5), num_missing=1)
    add(waiting, make("warm", 500), num_missing=300)
    assert order(waiting) == ["warm", "short", "cold"]


def test_by_response_ratio() -> None:
    """Short ones first; a long one that has waited for long is ahead of short ones that have just come."""
    waiting = queue("hrrn")
    add(waiting, make("long", 1000), now=0.0)
    add(waiting, make("short", 10), now=0.0)
    assert order(waiting, now=1.0) == ["short", "long"]
    add(waiting, make("later", 10), now=10.0)
    assert order(waiting, now=10.05) == ["short", "long", "later"]
    assert order(waiting, now=10.3) == ["short", "later", "long"]


def test_what_is_cached_counts_not_what_is_long() -> None:
    waiting = queue("hrrn")
    add(waiting, make("cold", 200), num_missing=200)
    add(waiting, make("warm", 5000), num_missing=20)
    assert order(waiting, now=1.0) == ["warm", "cold"]


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_goes_before_policy_and_preempted_ones_before_all(policy: Policy) -> None:
    waiting = queue(policy)
    add(waiting, make("usual", 1))
    add(waiting, make("urgent", 900, priority=-1))
    add(waiting, make("whenever", 1, priority=5))
    assert order(waiting, now=1.0) == ["urgent", "usual", "whenever"]
    begun = make("begun", 5, priority=9)
    waiting.shares.open(b"")
    waiting.put_back(begun)
    assert order(waiting, now=1.0) == ["begun", "urgent", "usual", "whenever"]
    waiting.start(begun, 5)
    assert order(waiting, now=1.0) == ["urgent", "usual", "whenever"]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_of_a_session_do_not_overtake_each_other(policy: Policy) -> None:
    waiting = queue(policy)
    first = make("first", 900, session=b"s")
    add(waiting, first)
    add(waiting, make("second", 1, session=b"s"))
    add(waiting, make("other", 1, session=b"t"))
    assert set(order(waiting, now=1.0)) == {"first", "other"}
    waiting.start(first, 900)
    assert set(order(waiting, now=1.0)) == {"second", "other"}


def test_the_tenant_that_had_least_is_next() -> None:
    waiting = queue("fcfs")
    for i in range(4):
        add(waiting, make(f"a{i}", 100, tenant=b"a"))
    add(waiting, make("b0", 100, tenant=b"b"))
    add(waiting, make("b1", 100, tenant=b"b"))
    started = []
    while waiting:
        (request,) = waiting.tries(1, 0.0)
        waiting.start(request, 100)
        started.append(request.rid)
    assert started == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_tenant_that_comes_back_has_saved_nothing_up() -> None:
    waiting = queue("fcfs")
    for i in range(9):
        add(waiting, make(f"a{i}", 100, tenant=b"a"))
    for _ in range(5):
        waiting.start(waiting.tries(1, 0.0)[0], 100)
    for i in range(3):
        add(waiting, make(f"b{i}", 100, tenant=b"b"))
    started = []
    while waiting:
        (request,) = waiting.tries(1, 0.0)
        waiting.start(request, 100)
        started.append(request.rid[0])
    assert "".join(started) == "ababab" + "a"


def test_tenants_without_requests_are_forgotten_in_the_end() -> None:
    waiting = queue("fcfs")
    for i in range(50):
        add(waiting, make("one", 10, tenant=bytes([i])))
        (request,) = waiting.tries(1, 0.0)
        waiting.start(request, 10)
        waiting.shares.close(request.tenant)
    assert not waiting.shares._served


def test_what_is_looked_at_anew_goes_round() -> None:
    waiting = queue("hrrn")
    requests = [make(str(i)) for i in range(5)]
    for request in requests:
        add(waiting, request)
    looked_at = Counter(one.rid for _ in range(5) for one in waiting.some(2))
    assert looked_at == {str(i): 2 for i in range(5)}
    assert len(waiting.some(64)) == 5


events = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 400), st.integers(0, 1), st.sampled_from([b"a", b"b"])),
        st.tuples(st.just("start"), st.integers(0, 2), st.just(0), st.just(b"")),
        st.tuples(st.just("withdraw"), st.integers(0, 9), st.just(0), st.just(b"")),
    ),
    max_size=60,
)


@given(events=events, policy=st.sampled_from(POLICIES), patience=st.sampled_from([0.0, 0.5, 2.0]))
def test_nobody_is_overtaken_beyond_what_is_stated(
    events: list[tuple], policy: Policy, patience: float
) -> None:
    """Work of later requests of the same tenant and priority that starts before one, against its bound."""
    waiting, all_requests = queue(policy, patience), {}
    bounds: dict[str, float] = {}
    overtaken: Counter[str] = Counter()
    now = 0.0
    for n, (what, size, priority, tenant) in enumerate(events):
        now += 0.05
        if what == "arrive":
            request = make(str(n), size, priority, tenant)
            rivals = [one for one in waiting if (one.priority, one.tenant) == (priority, tenant)]
            bounds[request.rid] = patience * (size + sum(one.num_tokens for one in rivals)) + GRACE
            add(waiting, request, now)
            all_requests[request.rid] = request
        elif what == "start" and waiting:
            tried = waiting.tries(64, now)
            assert len(tried) == len(waiting)
            # The first may have to wait for another's prefix: then a later one starts, which is not the order's doing.
            request = tried[0]
            waiting.start(request, request.num_tokens)
            for one in waiting:
                is_rival = (one.priority, one.tenant) == (request.priority, request.tenant)
                if is_rival and one.order < request.order:
                    if policy == "fcfs":
                        raise AssertionError(f"{request.rid} overtook {one.rid}")
                    assert overtaken[one.rid] < bounds[one.rid], "overtaken although it was its turn"
                    overtaken[one.rid] += request.num_tokens
        elif what == "withdraw" and waiting:
            rids = [one.rid for one in waiting]
            rid = rids[size % len(rids)]
            gone = waiting.withdraw(rid)
            assert gone is all_requests[rid]
            waiting.shares.close(gone.tenant)
            assert waiting.withdraw(rid) is None
    assert all(overtaken[rid] <= bounds[rid] + 400 for rid in bounds)
