"""What requests say about the future of their tokens: leases on what will be used again, scratch where nobody will.

Where the sequence of an ended request lies is remembered, so that it can be leased when its sender knows how long it
will be away, and so that what a session's next request leaves behind is known.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import ReferenceType, ref

from deeproot.engine.eviction import EvictionClass, abandon, class_of, rank_of
from deeproot.engine.leases import Lease
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import TOKEN_BYTES, Node, lineage, shared_end
from deeproot.scheduler.messages import Boundary
from deeproot.scheduler.request import Request

K = TypeVar("K")
V = TypeVar("V")

_MAX_TAILS = 4096
"""Ended requests, and sessions, that are remembered."""


@dataclass(slots=True)
class Tail:
    """Where the sequence of a request that has ended lies in the tree."""

    node: ReferenceType[Node]
    """Weak: what was evicted is not kept for it."""
    end: int
    """Bytes of ids from the start of the sequence."""
    owner: bytes
    leases: list[Lease] = field(default_factory=list)
    """Those of its session, some of them over."""


class Claims:
    """Leases and tails of requests with hints. For the engine's thread."""

    def __init__(self, cache: RadixCache, clock: Callable[[], float], *, heeded: bool = True) -> None:
        """Without `heeded` nothing is leased and no session remembered: least recently used alone."""
        self._heeded = heeded
        self._cache = cache
        self._clock = clock
        self.hits = dict.fromkeys(EvictionClass, 0)
        """Tokens in whole pages that are shared or under a lease and that requests found cached, by class."""
        self._recent: OrderedDict[str, Tail] = OrderedDict()
        self._early: OrderedDict[str, Sequence[Boundary]] = OrderedDict()
        self._sessions: OrderedDict[tuple[bytes, bytes], Tail] = OrderedDict()

    def tick(self) -> None:
        """End leases whose time has come; once a step."""
        if len(self._cache.leases):
            self._cache.leases.expire(self._clock())

    def started(self, request: Request) -> None:
        """A request is running from now on, its cached prefix locked: a use, and its session's newest word."""
        assert request.node is not None
        if not request.high_water and (request.route.shared or len(self._cache.leases)):
            self._count_hits(request.node)
        if len(self._cache.leases):
            self._cache.leases.refresh(request.node)
        if request.hints is not None and request.hints.session:
            tail = self._sessions.get((request.namespace, request.hints.session))
            if tail is not None:
                self._supersede(tail, request.node)

    def ended(self, request: Request) -> None:
        """A request with hints has ended, its tokens are in the tree and still locked."""
        if not self._heeded:
            return
        hints, node = request.hints, request.node
        assert hints is not None
        assert node is not None
        pauses = {lease for step in lineage(node) for lease in step.leases if lease.pause}
        for lease in pauses:
            self._cache.leases.drop(lease)
        if pauses:
            self._join(node)
        tail = Tail(ref(node), node.end, hints.owner)
        _put(self._recent, request.rid, tail)
        if hints.session:
            key = (request.namespace, hints.session)
            before = self._sessions.get(key)
            if before is not None:
                tail.leases = [lease for lease in before.leases if lease.node is not None]
            _put(self._sessions, key, tail)
        early = self._early.pop(request.rid, None)
        if early is not None:
            self.hold(request.rid, early)

    def hold(self, rid: str, boundaries: Sequence[Boundary]) -> int:
        """Lease runs of an ended request's sequence; they take the place of those that its session had.

        boundaries: their ends in order. Returns how many leases run; 0 also if the request is not known: one whose last
        step is still in flight is held when that has landed.
        """
        if not self._heeded:
            return 0
        tail = self._recent.get(rid)
        if tail is None:
            _put(self._early, rid, boundaries)
            return 0
        node = _living(tail.node())
        if node is None:
            return 0
        leases = self._cache.leases
        leases.expire(self._clock())
        for lease in tail.leases:
            leases.release(lease)
        tail.leases.clear()
        width = self._cache.page_size * TOKEN_BYTES
        # What is shared needs no lease, and no tenant can give it one.
        end, start, placed = min(tail.end, node.end), shared_end(node), 0
        for boundary in boundaries:
            stop = min(boundary.end * TOKEN_BYTES, end) // width * width
            if stop <= start:
                continue
            if boundary.lease_s > 0:
                if start:
                    self._cache.node_at(node, start)
                rank = rank_of(EvictionClass(boundary.zone), boundary.priority)
                last = self._cache.node_at(node, stop)
                asked = Lease(tail.owner, rank, boundary.lease_s, 0.0, start, last, boundary.pause)
                if (running := leases.place(asked)) is not None:
                    placed += 1
                    tail.leases.append(running)
            start = stop
        return placed

    def _join(self, node: Node) -> None:
        """Nodes that leases had kept apart become one again, so that a conversation stays a few of them."""
        step: Node | None = node
        while step is not None:
            if not self._cache.join(step):
                step = step.parent

    def fork(self, namespace: bytes, session: bytes, new: bytes) -> int | None:
        """A second session that goes on from where one that is known is; their pages are the same. Returns how many tokens
        it begins with; None if there is one of the new name."""
        tail = self._sessions[namespace, session]
        if (namespace, new) in self._sessions:
            return None
        _put(self._sessions, (namespace, new), Tail(tail.node, tail.end, tail.owner))
        return tail.end // TOKEN_BYTES

    def knows(self, namespace: bytes, session: bytes) -> bool:
        """Whether a session is remembered."""
        return (namespace, session) in self._sessions

    def leave(self, namespace: bytes, session: bytes, keep: int) -> int | None:
        """A session gives up all its tokens after the first `keep`; returns how many pages became scratch for that; None if
        it is not known. Without any tokens it is forgotten."""
        key = namespace, session
        tail = self._sessions.get(key)
        if tail is None:
            return None
        if not keep:
            del self._sessions[key]
        node = _living(tail.node())
        if node is None:
            return 0
        width = self._cache.page_size * TOKEN_BYTES
        stop = min(keep * TOKEN_BYTES, tail.end, node.end) // width * width
        kept = self._cache.node_at(node, stop)
        before = self._cache.order.num_pages(EvictionClass.SCRATCH)
        self._supersede(tail, kept)
        tail.node, tail.end = ref(kept), stop
        return self._cache.order.num_pages(EvictionClass.SCRATCH) - before

    def _count_hits(self, node: Node) -> None:
        for step in lineage(node):
            if step.rank > 0:
                self.hits[class_of(step.rank)] += len(step.key) // TOKEN_BYTES

    def _supersede(self, tail: Tail, kept: Node) -> None:
        """Make scratch of what only `tail` needed and the way to `kept` does not; its leases end there."""
        on_path = {id(node) for node in lineage(kept)}
        leases = self._cache.leases
        for lease in [lease for lease in tail.leases if lease.node is not None]:
            node = lease.node
            while node is not None and id(node) not in on_path:
                node = node.parent
            if node is not lease.node:
                leases.release(lease)
                tail.leases.remove(lease)
                if node is not None and node.end > lease.start:
                    part = Lease(lease.owner, lease.rank, lease.seconds, 0.0, lease.start, node, lease.pause)
                    if (rest := leases.place(part)) is not None:
                        tail.leases.append(rest)
        last = _living(tail.node())
        if last is not None and id(last) not in on_path:
            claimed = self._claimed_beside(tail, {id(node) for node in lineage(last)})
            abandon(self._cache.order, last, kept, tail.end, claimed)

    def _claimed_beside(self, tail: Tail, path: set[int]) -> set[int]:
        """`id` of the nodes in which other sessions end. Those of `path` are split where they do."""
        width = self._cache.page_size * TOKEN_BYTES
        claimed = set()
        for other in self._sessions.values():
            node = _living(other.node()) if other is not tail else None
            while node is not None and node.parent is not None and node.start >= other.end:
                node = node.parent
            if node is not None and id(node) in path:
                node = self._cache.node_at(node, min(-(-other.end // width) * width, node.end))
            if node is not None:
                claimed.add(id(node))
        return claimed


def _living(node: Node | None) -> Node | None:
    """What is left of a tail: `node`, or its deepest ancestor that is still cached."""
    while node is not None and node.is_gone:
        node = node.parent
    return None if node is None or node.parent is None else node


def _put(line: "OrderedDict[K, V]", key: K, value: V) -> None:
    line[key] = value
    line.move_to_end(key)
    if len(line) > _MAX_TAILS:
        line.popitem(last=False)
