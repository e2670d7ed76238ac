"""Promises, with an end, that cached tokens are evicted after others.

A lease covers a run of a cached sequence and puts its nodes into a higher class of the order of eviction until it
ends. It keeps nothing from a running request: leased pages count as evictable and go when nothing lower is left. What
an owner may lease is bounded in number and in pages; a new lease takes the place of the owner's lower ones.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import takewhile

from deeproot.engine.eviction import EvictionOrder
from deeproot.engine.radix_node import Node, lineage

_LEAST_S = 0.001
"""A shorter lease is none; much less, added to the clock, would not move it."""


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """What leases may do; of each owner, but for the first.

    Raises ValueError, naming the field, for values that could not work.
    """

    max_seconds: float = 3600.0
    max_leases: int = 256
    max_pages: int = 2**31

    def __post_init__(self) -> None:
        for name in ("max_seconds", "max_leases", "max_pages"):
            value = getattr(self, name)
            if not value >= 0:
                raise ValueError(f"{name} must be 0 or more, got {value}")


@dataclass(slots=True, eq=False)
class Lease:
    """Of the tokens from byte `start` of a sequence to the end of `node`."""

    owner: bytes
    rank: int
    seconds: float
    """From its last use to its end."""
    end: float
    start: int
    node: Node | None
    """None: it is over."""
    pause: bool = False
    """Given for the time until its conversation goes on: whoever goes on ends it."""
    holders: int = 1
    """How many asked for it and did not `release` it."""


@dataclass(slots=True)
class _Account:
    leases: set[Lease] = field(default_factory=set)
    pages: int = 0


class Leases:
    """All running leases of a tree. `now` is what `expire` was told last."""

    def __init__(self, order: EvictionOrder) -> None:
        self.limits = LeaseLimits()
        self.now = 0.0
        self._order = order
        self._accounts: dict[bytes, _Account] = {}
        self._num = 0
        # By end, with a number against ties; a lease that was used since ends later than its entry says.
        self._ends: list[tuple[float, int, Lease]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._num

    def running(self) -> list[Lease]:
        """All of them; for checks and displays."""
        return [lease for account in self._accounts.values() for lease in account.leases]

    def pages_of(self, owner: bytes) -> int:
        """Pages that an owner's leases cover."""
        account = self._accounts.get(owner)
        return 0 if account is None else account.pages

    def expire(self, now: float) -> None:
        """End the leases whose time has come."""
        self.now = now
        while self._ends and self._ends[0][0] <= now:
            lease = heappop(self._ends)[2]
            if lease.node is not None and lease.end > now:
                self._push(lease)
            else:
                self.drop(lease)

    def place(self, new: Lease) -> Lease | None:
        """Let a lease begin, on nodes of the tree that begin at its start and end where its node does.

        One of the same owner, class and run is prolonged instead. Returns the one that runs; None if the owner's limits
        leave it no room.
        """
        assert new.node is not None
        seconds = min(new.seconds, self.limits.max_seconds)
        if seconds < _LEAST_S or new.node.parent is None or new.node.end <= new.start:
            return None
        new.seconds, new.end = seconds, self.now + seconds
        for old in new.node.leases:
            if (old.owner, old.rank, old.start, old.node) == (new.owner, new.rank, new.start, new.node):
                old.seconds, old.pause = seconds, old.pause and new.pause
                old.end, old.holders = max(old.end, new.end), old.holders + 1
                return old
        account = self._accounts.setdefault(new.owner, _Account())
        if not self._make_room(account, new):
            self._tidy(new.owner, account)
            return None
        self._accounts[new.owner] = account  # making room may have emptied and dropped it
        self._num += 1
        account.leases.add(new)
        for node in _covered(new):
            account.pages += 0 if _is_leased_by(node, new.owner) else len(node.pages)
            node.leases = (*node.leases, new)
            self._order.set_rank(node, max(node.rank, new.rank))
        self._push(new)
        return new

    def refresh(self, node: Node) -> None:
        """Count a use of all leases on the way to `node`."""
        for step in lineage(node):
            for lease in step.leases:
                lease.end = self.now + lease.seconds

    def release(self, lease: Lease) -> None:
        """One who asked for a lease needs it no longer."""
        lease.holders -= 1
        if lease.holders <= 0:
            self.drop(lease)

    def drop(self, lease: Lease) -> None:
        """End a lease now; nothing if it is over."""
        if lease.node is None:
            return
        account = self._accounts[lease.owner]
        for node in _covered(lease):
            node.leases = tuple(other for other in node.leases if other is not lease)
            account.pages -= 0 if _is_leased_by(node, lease.owner) else len(node.pages)
            self._order.set_rank(node, max((other.rank for other in node.leases), default=0))
        self._end(lease, account)

    def removed(self, node: Node) -> None:
        """A leased node leaves the tree, before it does: its leases go on on what is left of their runs."""
        for owner in {lease.owner for lease in node.leases}:
            self._accounts[owner].pages -= len(node.pages)
        for lease in node.leases:
            if lease.node is node:
                lease.node = node.parent
                if node.start <= lease.start:
                    self._end(lease, self._accounts[lease.owner])
        node.leases = ()

    def _make_room(self, account: _Account, new: Lease) -> bool:
        """End lower or equal leases of the owner, the lowest and soonest to end first, until the new one fits."""
        while True:
            pages = sum(len(node.pages) for node in _covered(new) if not _is_leased_by(node, new.owner))
            fits = account.pages + pages <= self.limits.max_pages
            if fits and len(account.leases) < self.limits.max_leases:
                return True
            lowest = min(account.leases, key=lambda lease: (lease.rank, lease.end), default=None)
            if lowest is None or lowest.rank > new.rank:
                return False
            self.drop(lowest)

    def _end(self, lease: Lease, account: _Account) -> None:
        lease.node = None
        self._num -= 1
        account.leases.discard(lease)
        self._tidy(lease.owner, account)

    def _tidy(self, owner: bytes, account: _Account) -> None:
        if not account.leases:
            self._accounts.pop(owner, None)

    def _push(self, lease: Lease) -> None:
        self._count += 1
        heappush(self._ends, (lease.end, self._count, lease))
        if len(self._ends) > 2 * self._num + 64:
            self._ends = [entry for entry in self._ends if entry[2].node is not None]
            heapify(self._ends)


def _covered(lease: Lease) -> list[Node]:
    """The nodes of a lease's run, deepest first."""
    if lease.node is None:
        return []
    return list(takewhile(lambda node: node.start >= lease.start, lineage(lease.node)))


def _is_leased_by(node: Node, owner: bytes) -> bool:
    return any(lease.owner == owner for lease in node.leases)
