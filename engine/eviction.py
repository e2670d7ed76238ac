"""The order in which cached pages go: by class, then by last use."""

from collections.abc import Collection
from enum import IntEnum
from heapq import heapify, heappop, heappush

from deeproot.engine.radix_node import Node, lineage

_CLOCK_BITS = 50
_PRIORITIES = 16
MAX_PRIORITY = _PRIORITIES - 1


class EvictionClass(IntEnum):
    """Of a cached page; the lowest goes first."""

    SCRATCH = -1
    """Left by whoever had it: dead branches."""
    PLAIN = 0
    """Under no lease: least recently used."""
    LEAF = 1
    TRUNK = 2
    ROOT = 3
    """The last three as long as a lease runs."""
    SHARED = 4
    """Of declared segments, which tenants neither lease nor leave."""


def rank_of(kind: EvictionClass, priority: int = 0) -> int:
    """A node's place in the order of eviction; `priority`, up to `MAX_PRIORITY`, decides among roots.

    Among leaf and trunk it decides before the class, so that of two conversations one goes whole before the other begins to.
    """
    if kind <= EvictionClass.PLAIN:
        return int(kind)
    if kind <= EvictionClass.TRUNK:
        return EvictionClass.LEAF * _PRIORITIES + 2 * priority + (kind - EvictionClass.LEAF)
    return kind * _PRIORITIES + priority


def class_of(rank: int) -> EvictionClass:
    if rank <= EvictionClass.PLAIN:
        return EvictionClass(rank)
    if rank < EvictionClass.ROOT * _PRIORITIES:
        return EvictionClass(EvictionClass.LEAF + rank % 2)
    return EvictionClass(rank // _PRIORITIES)


SHARED_RANK = rank_of(EvictionClass.SHARED)


class EvictionOrder:
    """Who goes next among the nodes that can go: childless, unlocked, no root.

    A heap of stamps made of rank and last use. Stamps that no longer hold are recognised when they are popped, and
    cleared out when they outnumber the others.
    """

    def __init__(self) -> None:
        self._clock = 0
        self._heap: list[int] = []
        self._node_of: dict[int, Node] = {}
        self._pages = dict.fromkeys(EvictionClass, 0)

    def touch(self, node: Node) -> None:
        """Count a use."""
        self.forget(node)
        self._clock += 1
        node.used = self._clock
        self.offer(node)
        if node.rank < 0:
            self.revive(node)

    def set_used(self, node: Node, used: int) -> None:
        self.forget(node)
        node.used = used

    def set_rank(self, node: Node, rank: int) -> None:
        """Put a node that is in the tree into another place of the order."""
        if rank != node.rank:
            if rank >= 0 > node.rank:
                self.revive(node)
            self.forget(node)
            self._count(node, rank)
            self.offer(node)

    def grew(self, node: Node, num_pages: int) -> None:
        """A node has got pages in place."""
        self._pages[class_of(node.rank)] += num_pages

    def revive(self, node: Node) -> None:
        """What was scratch is in use again, and all before it, since scratch has only scratch behind it."""
        step: Node | None = node
        while step is not None and step.rank < 0:
            self.forget(step)
            self._count(step, 0)
            self.offer(step)
            step = step.parent

    def remove(self, node: Node) -> None:
        """A node leaves the tree."""
        self.forget(node)
        if node.rank:
            self._count(node, 0)

    def forget(self, node: Node) -> None:
        """What may stand in the heap for `node` holds no longer."""
        stamp = node.used + (node.rank << _CLOCK_BITS)
        if self._node_of.get(stamp) is node:
            del self._node_of[stamp]

    def offer(self, node: Node) -> None:
        """Make a node known to `pop` if it can go."""
        if node.children or node.locks or node.parent is None:
            return
        stamp = node.used + (node.rank << _CLOCK_BITS)
        self._node_of[stamp] = node
        heappush(self._heap, stamp)
        if len(self._heap) > 2 * len(self._node_of) + 64:
            self._node_of = {s: n for s, n in self._node_of.items() if _can_go(n)}
            self._heap = list(self._node_of)
            heapify(self._heap)

    def pop(self) -> Node | None:
        """The next one; None if there is none."""
        while self._heap:
            node = self._node_of.pop(heappop(self._heap), None)
            if node is not None and _can_go(node):
                return node
        return None

    def candidates(self) -> list[Node | None]:
        """What stands behind each stamp, for checks; None behind one that is outdated."""
        return [self._node_of.get(stamp) for stamp in self._heap]

    def num_pages(self, kind: EvictionClass) -> int:
        """Pages of the nodes of a class other than PLAIN."""
        return self._pages[kind]

    def _count(self, node: Node, rank: int) -> None:
        self._pages[class_of(node.rank)] -= len(node.pages)
        self._pages[class_of(rank)] += len(node.pages)
        node.rank = rank


def abandon(order: EvictionOrder, node: Node, kept: Node, end: int, claimed: Collection[int] = ()) -> None:
    """Make scratch of the way from `node` up to `kept`, or to where it joins the way to that, as far as nobody else
    needs it: no lock, no lease, no other branch in use. What is shared stays what it is.

    end: byte at which what is abandoned ended; a node that goes on behind it was taken up by somebody else. claimed: `id`
    of nodes that others need.
    """
    needed = {id(step) for step in lineage(kept)}
    while node.parent is not None and id(node) not in needed:
        in_use = node.locks or node.leases or any(child.rank >= 0 for child in node.children)
        if node.end > end or in_use or node.is_shared or id(node) in claimed:
            return
        order.set_rank(node, EvictionClass.SCRATCH)
        node = node.parent


def _can_go(node: Node) -> bool:
    return not node.children and not node.locks and node.parent is not None
