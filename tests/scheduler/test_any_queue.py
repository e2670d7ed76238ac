"""The order of waiting requests against its definition, whatever comes and goes."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.scheduler.waiting_queue import GRACE, add, make, order, queue

from deeproot.scheduler.config import POLICIES, Policy
from deeproot.scheduler.request import Request
from deeproot.scheduler.waiting import WaitingRequests


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
