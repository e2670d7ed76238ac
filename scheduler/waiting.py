"""The requests that wait to start, and the order in which they are tried.

Those that were preempted come first: they have begun. Then, in this order:

- priority, the lowest number first;
- the tenant for which least was computed, so that one that sends much does not keep the others waiting;
- of a tenant, whoever was overtaken for long enough, first come first;
- the policy: `fcfs` by arrival; `lpm` by the longest cached prefix; `hrrn` by the highest response ratio, which is
  (time waited + time to compute) / time to compute, so that short ones go first and long ones grow with waiting.

"Long enough" is what bounds starvation: requests that came later, of the same tenant and priority, start before one only
until they have had `patience` times as many tokens to compute as stood in the queue when it came, its own included, and
`grace` tokens more. So it starts after at most `1 + patience` times the work of first come, first served, and `grace`, and the
one request that crosses the line. A request of a session never starts before an earlier one of the same session.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from heapq import nsmallest

from deeproot.scheduler.config import Policy
from deeproot.scheduler.request import Request
from deeproot.scheduler.shares import TenantShares

_OVERHEAD_S = 0.005
"""Of any request, so that one that finds all but a token cached is not infinitely short."""


class WaitingRequests:
    """Iterates and counts in order of arrival, preempted ones first."""

    def __init__(
        self, policy: Policy, patience: float, grace: int, seconds_for: Callable[[int], float]
    ) -> None:
        """grace: tokens. seconds_for: how long so many tokens of prompts take to compute."""
        self._policy = policy
        self._patience = patience
        self._grace = grace
        self._seconds_for = seconds_for
        self._preempted: deque[Request] = deque()
        self._arrived: dict[Request, None] = {}
        self._num_arrived = 0
        self._last_looked_at = -1
        self.shares = TenantShares()

    def __len__(self) -> int:
        return len(self._preempted) + len(self._arrived)

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        yield from self._arrived

    def add(self, request: Request, now: float, num_missing: int) -> None:
        """Take a new request. now: seconds. num_missing: its tokens that are not cached."""
        request.order = self._num_arrived
        request.arrived, request.num_missing = now, num_missing
        ahead = sum(one.num_missing for one in self._arrived if _are_rivals(one, request))
        request.allowance = int(self._patience * (ahead + num_missing)) + self._grace
        self._num_arrived += 1
        self._arrived[request] = None

    def put_back(self, request: Request) -> None:
        """Take a preempted request: it is the next one."""
        self._preempted.appendleft(request)

    def withdraw(self, rid: str) -> Request | None:
        """Take a request out that will not run; None if it is not here."""
        found = next((request for request in self if request.rid == rid), None)
        if found is not None:
            self._remove(found)
        return found

    def start(self, request: Request, num_tokens: int) -> None:
        """Take a request out that runs now, with so many tokens to compute."""
        is_new = request in self._arrived
        self._remove(request)
        if not is_new:
            return
        self.shares.charge(request.tenant, num_tokens)
        if self._policy != "fcfs":
            for one in self._arrived:
                if one.order > request.order:
                    break
                if _are_rivals(one, request):
                    one.allowance -= num_tokens

    def tries(self, n: int, now: float) -> list[Request]:
        """The first `n` that may start now, in the order described above, and all that were preempted."""
        if len(self._arrived) == 1:
            return [*self._preempted, *self._arrived]
        return [*self._preempted, *nsmallest(n, self._first_of_sessions(), lambda one: self._key(one, now))]

    def some(self, n: int) -> list[Request]:
        """`n` of those that are new, the next ones at each call."""
        arrived = list(self._arrived)
        first = bisect_right(arrived, self._last_looked_at, key=lambda one: one.order)
        taken = (arrived[first:] + arrived[:first])[:n]
        self._last_looked_at = taken[-1].order if taken else -1
        return taken

    def _remove(self, request: Request) -> None:
        if request in self._arrived:
            del self._arrived[request]
        else:
            self._preempted.remove(request)

    def _first_of_sessions(self) -> Iterator[Request]:
        begun: set[tuple[bytes, bytes]] = set()
        for request in self._arrived:
            if request.session:
                session = request.namespace, request.session
                if session in begun:
                    continue
                begun.add(session)
            yield request

    def _key(self, request: Request, now: float) -> tuple[int, int, bool, float, int]:
        overdue = request.allowance <= 0
        rank = 0.0 if overdue else self._rank(request, now)
        return request.priority, self.shares.of(request.tenant), not overdue, rank, request.order

    def _rank(self, request: Request, now: float) -> float:
        if self._policy == "lpm":
            return float(request.num_missing - request.num_tokens)
        if self._policy == "hrrn":
            return (request.arrived - now) / (self._seconds_for(request.num_missing) + _OVERHEAD_S)
        return 0.0


def _are_rivals(one: Request, other: Request) -> bool:
    return one.priority == other.priority and one.tenant == other.tenant
