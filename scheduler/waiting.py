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

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray

from deeproot.scheduler.config import Policy
from deeproot.scheduler.line import Line, Places
from deeproot.scheduler.request import Request
from deeproot.scheduler.shares import TenantShares

_OVERHEAD_S = 0.005
"""Of any request, so that one that finds all but a token cached is not infinitely short."""


class WaitingRequests:
    """Iterates and counts in order of arrival, preempted ones first."""

    def __init__(self, policy: Policy, patience: float, grace: int, token_s: Callable[[], float]) -> None:
        """grace: tokens. token_s: how long a token of a prompt takes to compute now."""
        self._policy = policy
        self._patience = patience
        self._grace = grace
        self._token_s = token_s
        self._preempted: deque[Request] = deque()
        self._arrived: dict[str, Request] = {}
        """By rid, in order of arrival."""
        self._num_arrived = 0
        self._to_look_at: OrderedDict[Request, None] = OrderedDict()
        """The same, those first that were looked at least lately."""
        self._lines: dict[tuple[int, bytes], Line] = {}
        """The same by priority and tenant: each line's requests are those that could overtake each other."""
        self._sessions: dict[tuple[bytes, bytes], deque[Request]] = {}
        """The same by namespace and session, those that are of one."""
        self.shares = TenantShares()

    def __len__(self) -> int:
        return len(self._preempted) + len(self._arrived)

    def __iter__(self) -> Iterator[Request]:
        yield from self._preempted
        yield from self._arrived.values()

    def add(self, request: Request, now: float, num_missing: int) -> None:
        """Take a new request. now: seconds. num_missing: its tokens that are not cached."""
        request.order = self._num_arrived
        self._num_arrived += 1
        request.arrived, request.num_missing = now, num_missing
        line = self._lines.setdefault((request.priority, request.tenant), Line())
        request.allowance = int(self._patience * (line.num_missing + num_missing)) + self._grace
        self._arrived[request.rid] = request
        self._to_look_at[request] = None
        line.add(request, self._enter_session(request))

    def put_back(self, request: Request) -> None:
        """Take a preempted request: it is the next one."""
        self._preempted.appendleft(request)

    def withdraw(self, rid: str) -> Request | None:
        """Take a request out that will not run; None if it is not here."""
        found = self._arrived.get(rid) or next((one for one in self._preempted if one.rid == rid), None)
        if found is not None:
            self._remove(found)
        return found

    def start(self, request: Request, num_tokens: int) -> None:
        """Take a request out that runs now, with so many tokens to compute."""
        if request.rid in self._arrived:
            self.shares.charge(request.tenant, num_tokens)
            if self._policy != "fcfs":
                self._line_of(request).overtake(request, num_tokens)
        self._remove(request)

    def note_missing(self, request: Request, num_missing: int) -> None:
        """Of a request that waits it is known now how many of its tokens are not cached."""
        if request.num_missing != num_missing:
            request.num_missing = num_missing
            if request.rid in self._arrived:
                self._line_of(request).note(request)

    def tries(self, n: int, now: float) -> list[Request]:
        """The first `n` that may start now, in the order described above, and all that were preempted."""
        found = list(self._preempted)
        if len(self._arrived) == 1:
            return [*found, *self._arrived.values()]
        most = len(found) + n
        by_claim = sorted(
            ((self._claim(*who), line) for who, line in self._lines.items()), key=lambda one: one[0]
        )
        for _, lines in groupby(by_claim, key=lambda one: one[0]):
            left = most - len(found)
            if not left:
                break
            firsts = sorted(
                one for _, line in lines for one in line.first(left, lambda at: self._ranks(at, now))
            )
            found += [request for _, _, request in firsts[:left]]
        return found

    def some(self, n: int) -> list[Request]:
        """`n` of those that are new, the next ones at each call."""
        taken = list(islice(self._to_look_at, n))
        for request in taken:
            self._to_look_at.move_to_end(request)
        return taken

    def _remove(self, request: Request) -> None:
        if request.rid not in self._arrived:
            self._preempted.remove(request)
            return
        del self._arrived[request.rid], self._to_look_at[request]
        line = self._line_of(request)
        line.remove(request)
        if not line:
            del self._lines[request.priority, request.tenant]
        self._leave_session(request)

    def _enter_session(self, request: Request) -> bool:
        """Whether it is the first of its session."""
        if not request.session:
            return True
        waiting = self._sessions.setdefault((request.namespace, request.session), deque())
        waiting.append(request)
        return len(waiting) == 1

    def _leave_session(self, request: Request) -> None:
        if not request.session:
            return
        session = request.namespace, request.session
        waiting = self._sessions[session]
        waiting.remove(request)
        if waiting:
            self._line_of(waiting[0]).let_start(waiting[0])
        else:
            del self._sessions[session]

    def _line_of(self, request: Request) -> Line:
        return self._lines[request.priority, request.tenant]

    def _claim(self, priority: int, tenant: bytes) -> tuple[int, int]:
        return priority, self.shares.of(tenant)

    def _ranks(self, places: Places, now: float) -> NDArray[np.float64]:
        ranks: NDArray[np.float64] = np.zeros(len(places))
        if self._policy == "lpm":
            ranks += places["num_missing"] - places["num_tokens"]
        elif self._policy == "hrrn":
            ranks += (places["arrived"] - now) / (places["num_missing"] * self._token_s() + _OVERHEAD_S)
        return ranks
