"""Leases and scratch of requests with hints, in the scheduler: what stays when pages run short, and that nothing waits for it."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from tests.scheduler.rig import hinted

from deeproot.engine.eviction import EvictionClass
from deeproot.engine.leases import LeaseLimits
from deeproot.scheduler.answering import answer
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.messages import Boundary, Hints
from deeproot.scheduler.questions import HoldAnswer, HoldQuestion, ProbeAnswer, ProbeQuestion
from deeproot.scheduler.scheduler import Scheduler

from .any_load import AnyLoad
from .rig import make_scheduler, request, run

EVERYTHING = 10**6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(scheduler: Scheduler, rid: str, ids: list[int], **hints: Any) -> None:
    scheduler.add(hinted(request(rid, ids, 1), **hints))
    run(scheduler)


def hold(scheduler: Scheduler, rid: str, *boundaries: Boundary) -> int:
    told = answer(scheduler, HoldQuestion(rid, boundaries))
    assert isinstance(told, HoldAnswer)
    return told.num_leases


def cached(scheduler: Scheduler, ids: list[int]) -> int:
    told = answer(scheduler, ProbeQuestion((request("", ids).token_ids,)))
    assert isinstance(told, ProbeAnswer)
    return told.cached[0]


def flood(scheduler: Scheduler, number: int) -> None:
    """Prompts of 16 tokens that nobody sends again."""
    for i in range(number):
        serve(scheduler, f"flood {i} {scheduler.counters.steps}", [30 + i % 20] * 16)


def all_of(kind: EvictionClass, seconds: float) -> Boundary:
    return Boundary(EVERYTHING, int(kind), seconds)


def small(clock: Clock, **limits: Any) -> Scheduler:
    """Room for 64 tokens."""
    scheduler = make_scheduler(page_size=4, num_pages=16, budget=32, max_len=64)
    scheduler.clock = clock
    scheduler.cache.leases.limits = LeaseLimits(**limits)
    return scheduler


def test_a_lease_keeps_its_tokens_until_it_ends() -> None:
    clock = Clock()
    scheduler = small(clock)
    serve(scheduler, "a", [1] * 16)
    assert hold(scheduler, "a", all_of(EvictionClass.TRUNK, 10)) == 1
    flood(scheduler, 8)
    assert cached(scheduler, [1] * 16) == 16
    clock.now = 9.0
    serve(scheduler, "b", [1] * 16)  # a use: it now ends at 19
    clock.now = 18.0
    flood(scheduler, 8)
    assert cached(scheduler, [1] * 16) == 16
    clock.now = 19.0
    flood(scheduler, 8)
    assert cached(scheduler, [1] * 16) == 0
    assert len(scheduler.cache.leases) == 0


def test_leased_pages_go_before_a_request_waits() -> None:
    clock = Clock()
    scheduler = small(clock)
    for rid, token in (("a", 1), ("b", 2), ("c", 3)):
        serve(scheduler, rid, [token] * 16)
        hold(scheduler, rid, all_of(EvictionClass.ROOT, 1000))
    scheduler.add(request("large", [9] * 60, 3))
    assert scheduler.counters.preemptions == 0
    assert run(scheduler)["large"][-1].finish_reason == "length"
    assert scheduler.cache.num_pages == 16


def test_the_class_and_then_the_priority_decide_among_leases() -> None:
    clock = Clock()
    scheduler = small(clock)
    for rid, token, kind, priority in (
        ("root", 1, EvictionClass.ROOT, 0),
        ("first", 2, EvictionClass.TRUNK, 5),
        ("second", 3, EvictionClass.TRUNK, 1),
    ):
        serve(scheduler, rid, [token] * 16)
        hold(scheduler, rid, Boundary(EVERYTHING, int(kind), 1000, priority))
    scheduler.pool.free(scheduler.cache.evict(4))
    assert [cached(scheduler, [token] * 16) for token in (1, 2, 3)] == [16, 16, 0]
    scheduler.pool.free(scheduler.cache.evict(4))
    assert [cached(scheduler, [token] * 16) for token in (1, 2, 3)] == [16, 0, 0]


def test_of_two_waiting_conversations_the_one_that_waits_longer_goes_whole_first() -> None:
    scheduler = small(Clock())
    for rid, token, priority in (("soon", 1, 9), ("late", 2, 4)):
        serve(scheduler, rid, [token] * 16)
        waits = (Boundary(8, 2, 60, priority, pause=True), Boundary(EVERYTHING, 1, 60, priority, pause=True))
        assert hold(scheduler, rid, *waits) == 2
    left = []
    for _ in range(8):
        scheduler.pool.free(scheduler.cache.evict(1))
        left.append([cached(scheduler, [token] * 16) for token in (1, 2)])
    # The newest of the late one first, its trunk then, and only then the newest of the other.
    assert left == [[16, 12], [16, 8], [16, 4], [16, 0], [12, 0], [8, 0], [4, 0], [0, 0]]


def test_what_a_session_leaves_goes_first() -> None:
    clock = Clock()
    scheduler = small(clock)
    serve(scheduler, "other", [5] * 12)
    serve(scheduler, "a", [1] * 8 + [2] * 12, session="s")
    hold(scheduler, "a", all_of(EvictionClass.TRUNK, 1000))
    serve(scheduler, "b", [1] * 8 + [3] * 8, session="s")  # compacted: the twos are gone
    order = scheduler.cache.order
    assert order.num_pages(EvictionClass.SCRATCH) == 3
    assert order.num_pages(EvictionClass.TRUNK) == 2, "what it still uses stays leased"
    scheduler.pool.free(scheduler.cache.evict(3))
    assert cached(scheduler, [1] * 8 + [2] * 12) == 8
    assert cached(scheduler, [5] * 12) == 12, "though used before all"


def test_what_two_sessions_share_is_left_by_none() -> None:
    clock = Clock()
    scheduler = small(clock)
    serve(scheduler, "a", [1] * 16, session="s")
    serve(scheduler, "b", [1] * 16 + [2] * 8, session="t")
    serve(scheduler, "c", [3] * 8, session="s")
    assert scheduler.cache.order.num_pages(EvictionClass.SCRATCH) == 0
    serve(scheduler, "d", [4] * 8, session="t")
    assert scheduler.cache.order.num_pages(EvictionClass.SCRATCH) == 6, "now nobody needs them"


def test_scratch_that_is_used_again_is_scratch_no_more() -> None:
    clock = Clock()
    scheduler = small(clock)
    serve(scheduler, "a", [1] * 16, session="s")
    serve(scheduler, "b", [2] * 8, session="s")
    assert scheduler.cache.order.num_pages(EvictionClass.SCRATCH) == 4
    serve(scheduler, "c", [1] * 16)
    assert scheduler.cache.order.num_pages(EvictionClass.SCRATCH) == 0


def test_a_pause_ends_when_its_conversation_goes_on() -> None:
    clock = Clock()
    scheduler = small(clock)
    serve(scheduler, "a", [1] * 16)
    waits = (Boundary(8, 2, 60, pause=True), Boundary(EVERYTHING, 1, 60, pause=True))
    assert hold(scheduler, "a", *waits) == 2
    serve(scheduler, "other", [2] * 8)
    assert len(scheduler.cache.leases) == 2
    serve(scheduler, "b", [1] * 16 + [3] * 4)
    assert len(scheduler.cache.leases) == 0
    hits = scheduler.claims.hits
    assert (hits[EvictionClass.TRUNK], hits[EvictionClass.LEAF]) == (8, 8)


def test_a_long_conversation_with_pauses_stays_a_few_nodes() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64, budget=32, max_len=256)
    ids = [1] * 8
    for turn in range(20):
        serve(scheduler, str(turn), ids)
        hold(
            scheduler,
            str(turn),
            Boundary(len(ids), 2, 60, pause=True),
            Boundary(EVERYTHING, 1, 60, pause=True),
        )
        ids = [*ids, *([turn] * 8)]
    assert scheduler.cache.num_nodes < 6


def test_a_lease_that_two_sessions_asked_for_ends_with_the_second() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64, budget=32, max_len=96)
    root = Boundary(8, int(EvictionClass.ROOT), 1000)
    for session, token in (("s", 2), ("t", 3)):
        serve(scheduler, session, [1] * 8 + [token] * 8, session=session)
        hold(scheduler, session, root)
        check_idle(scheduler)
    assert len(scheduler.cache.leases) == 1
    for session, left in (("s", 1), ("t", 0)):
        serve(scheduler, f"{session} anew", [9] * 8, session=session)
        check_idle(scheduler)
        assert len(scheduler.cache.leases) == left


def test_a_request_may_be_held_before_it_has_ended() -> None:
    scheduler = small(Clock())
    assert hold(scheduler, "a", all_of(EvictionClass.ROOT, 10)) == 0
    serve(scheduler, "a", [1] * 16)
    assert len(scheduler.cache.leases) == 1


def test_owners_are_bounded_and_apart() -> None:
    clock = Clock()
    scheduler = small(clock, max_leases=2, max_pages=6, max_seconds=5)
    for rid, token in (("a", 1), ("b", 2)):
        serve(scheduler, rid, [token] * 8, owner=b"one")
        assert hold(scheduler, rid, all_of(EvictionClass.TRUNK, 1000)) == 1
    serve(scheduler, "c", [3] * 8, owner=b"one")
    assert hold(scheduler, "c", all_of(EvictionClass.LEAF, 1000)) == 0, "nothing lower makes room"
    assert hold(scheduler, "c", all_of(EvictionClass.ROOT, 1000)) == 1
    assert scheduler.cache.leases.pages_of(b"one") == 4, "in the place of the one that ended first"
    serve(scheduler, "d", [4] * 28, owner=b"two")
    assert hold(scheduler, "d", all_of(EvictionClass.ROOT, 1000)) == 0, "more pages than it may lease"
    assert hold(scheduler, "d", Boundary(24, 3, 1000)) == 1
    assert len(scheduler.cache.leases) == 3
    clock.now = 5.0
    scheduler.step()
    scheduler.claims.tick()
    assert len(scheduler.cache.leases) == 0, "nobody's lease is longer than the limit"


def test_a_request_without_hints_or_gone_is_not_held() -> None:
    scheduler = small(Clock())
    scheduler.add(request("a", [1] * 16, 1))
    run(scheduler)
    assert hold(scheduler, "a", all_of(EvictionClass.ROOT, 10)) == 0
    serve(scheduler, "b", [2] * 16)
    scheduler.pool.free(scheduler.cache.evict(16))
    assert hold(scheduler, "b", all_of(EvictionClass.ROOT, 10)) == 0


class HintedLoad(AnyLoad):
    """Any load with sessions, leases of all kinds, and time that passes: everything ends and says what it would alone."""

    @rule(
        base=st.integers(0, 99),
        cut=st.integers(0, 60),
        tail=st.lists(st.integers(0, 3), min_size=1, max_size=40),
        max_tokens=st.integers(1, 30),
        session=st.sampled_from(["", "s", "t"]),
    )
    def arrive_with_hints(self, base: int, cut: int, tail: list[int], max_tokens: int, session: str) -> None:
        self.arrive(base, cut, tail, max_tokens, False, {"hints": Hints(b"", session.encode())})

    @precondition(lambda self: self.count)
    @rule(
        which=st.integers(0, 99),
        ends=st.lists(st.integers(1, 60), min_size=1, max_size=3),
        zone=st.integers(1, 3),
        lease_s=st.floats(0.0, 5.0),
        pause=st.booleans(),
    )
    def hold(self, which: int, ends: list[int], zone: int, lease_s: float, pause: bool) -> None:
        boundaries = [Boundary(end, zone, lease_s, pause=pause) for end in sorted(ends)]
        self.scheduler.claims.hold(str(which % self.count + 1), boundaries)

    @rule(seconds=st.floats(0.0, 3.0))
    def wait(self, seconds: float) -> None:
        before = self.scheduler.clock()
        self.scheduler.clock = lambda: before + seconds


TestHintedLoad = HintedLoad.TestCase
TestHintedLoad.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
