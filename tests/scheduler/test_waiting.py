"""The order of waiting requests: each rule by itself, and what bounds how long one is overtaken."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deeproot.scheduler.config import POLICIES, Policy
from deeproot.scheduler.messages import Hints, SamplingParams
from deeproot.scheduler.request import Request
from deeproot.scheduler.waiting import WaitingRequests

GRACE = 100


def make(
    rid: str, num_tokens: int = 10, priority: int = 0, tenant: bytes = b"", session: bytes = b""
) -> Request:
    sampling = SamplingParams(max_tokens=1, seed=0)
    who = {"priority": priority, "tenant": tenant, "hints": Hints(session=session)}
    return Request(rid, b"\0" * 4 * num_tokens, num_tokens, sampling, **who)


def queue(policy: Policy = "fcfs", patience: float = 2.0) -> WaitingRequests:
    """With a thousand tokens a second."""
    return WaitingRequests(policy, patience, GRACE, lambda: 0.001)


def add(waiting: WaitingRequests, request: Request, now: float = 0.0, num_missing: int | None = None) -> None:
    waiting.shares.open(request.tenant)
    waiting.add(request, now, request.num_tokens if num_missing is None else num_missing)


def order(waiting: WaitingRequests, now: float = 0.0, n: int = 64) -> list[str]:
    return [request.rid for request in waiting.tries(n, now)]


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


@dataclass
class Known:
    """What the order of one waiting request follows from."""

    request: Request
    allowance: float
    num_missing: int


def by_definition(known: list[Known], waiting: WaitingRequests, policy: Policy, now: float) -> list[str]:
    """The order as the module describes it, of `known` in order of arrival."""
    first: dict[bytes, Known] = {}
    for one in known:
        first.setdefault(one.request.session or one.request.rid.encode(), one)

    def key(one: Known) -> tuple[int, int, bool, float]:
        request, rank = one.request, 0.0
        if policy == "lpm":
            rank = one.num_missing - request.num_tokens
        elif policy == "hrrn":
            # Proportional to the response ratio less one.
            rank = -(now - request.arrived) / (one.num_missing / 1000 + 0.005)
        overdue = one.allowance <= 0
        return request.priority, waiting.shares.of(request.tenant), not overdue, 0.0 if overdue else rank

    return [one.request.rid for one in sorted(first.values(), key=key)]


class AnyQueue(RuleBasedStateMachine):
    """The queue against a list that is sorted anew each time."""

    @initialize(policy=st.sampled_from(POLICIES), patience=st.sampled_from([0.0, 0.5, 2.0]))
    def begin(self, policy: Policy, patience: float) -> None:
        self.policy, self.patience = policy, patience
        self.waiting = queue(policy, patience)
        self.known: list[Known] = []
        self.now, self.count = 0.0, 0

    @rule(
        sizes=st.lists(st.integers(1, 400), min_size=1, max_size=12),
        cached=st.integers(0, 400),
        priority=st.integers(0, 1),
        tenant=st.sampled_from([b"a", b"b"]),
        session=st.sampled_from([b"", b"", b"s", b"t"]),
    )
    def arrive(self, sizes: list[int], cached: int, priority: int, tenant: bytes, session: bytes) -> None:
        for size in sizes:
            self.count += 1
            request, num_missing = (
                make(str(self.count), size, priority, tenant, session),
                max(1, size - cached),
            )
            ahead = sum(one.num_missing for one in self.known if self.are_rivals(one.request, request))
            allowance = int(self.patience * (ahead + num_missing)) + GRACE
            add(self.waiting, request, self.now, num_missing)
            assert request.allowance == allowance
            self.known.append(Known(request, allowance, num_missing))

    @rule(times=st.integers(1, 9), which=st.sampled_from([0, 0, 1]))
    def start(self, times: int, which: int) -> None:
        for _ in range(times):
            tried = self.waiting.tries(2, self.now)
            if not tried:
                return
            taken = self.take(tried[min(which, len(tried) - 1)].rid)
            self.waiting.start(taken.request, taken.num_missing)
            self.now += taken.num_missing / 1000
            for one in self.known:
                is_earlier = one.request.order < taken.request.order
                if self.policy != "fcfs" and is_earlier and self.are_rivals(one.request, taken.request):
                    one.allowance -= taken.num_missing

    @rule(times=st.integers(1, 9), which=st.integers(0, 99))
    def withdraw(self, times: int, which: int) -> None:
        for _ in range(min(times, len(self.known))):
            taken = self.take(self.known[which % len(self.known)].request.rid)
            assert self.waiting.withdraw(taken.request.rid) is taken.request

    @rule(which=st.integers(0, 99), part=st.floats(0.0, 1.0))
    def is_cached_otherwise(self, which: int, part: float) -> None:
        if self.known:
            one = self.known[which % len(self.known)]
            one.num_missing = 1 + int(part * (one.request.num_tokens - 1))
            self.waiting.note_missing(one.request, one.num_missing)

    @invariant()
    def the_order_is_what_is_described(self) -> None:
        if not hasattr(self, "waiting"):
            return
        expected = by_definition(self.known, self.waiting, self.policy, self.now)
        assert [one.rid for one in self.waiting] == [one.request.rid for one in self.known]
        assert len(self.waiting) == len(self.known)
        for n in (1, 3, 64):
            assert order(self.waiting, self.now, n) == expected[:n]

    def take(self, rid: str) -> Known:
        (taken,) = [one for one in self.known if one.request.rid == rid]
        self.known.remove(taken)
        return taken

    @staticmethod
    def are_rivals(one: Request, other: Request) -> bool:
        return (one.priority, one.tenant) == (other.priority, other.tenant)


TestAnyQueue = AnyQueue.TestCase
TestAnyQueue.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
