"""What must always hold in the prefix tree, checked by walking all of it."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from deeproot.engine.eviction import SHARED_RANK, EvictionClass, class_of
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import TOKEN_BYTES, Node


class InvariantError(AssertionError):
    """Something that must always hold does not: a bug in deeproot."""


def require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def check_tree(tree: RadixCache) -> None:
    """Raise InvariantError if the tree's structure, locks or counters are not as they must be."""
    width = tree.page_size * TOKEN_BYTES
    nodes = list(tree.nodes())
    num_pages = num_evictable = 0
    for node in nodes:
        num_pages += len(node.pages)
        num_evictable += 0 if node.locks else len(node.pages)
        require(len(node.key) > 0, "a node holds no token")
        require(len(node.pages) == -(-len(node.key) // width), "a node's pages do not fit its tokens")
        require(not node.children or len(node.key) % width == 0, "a node with children ends inside a page")
        # A leaf, as most nodes are, has no more to check.
        if node.children or node.child_keys:
            reach = sum(child.locks for child in node.children)
            require(node.locks >= reach, "a lock does not reach an ancestor")
            _check_children(node, width)
    _check_children(tree.root, width)
    pages = np.concatenate([np.empty(0, dtype=np.int32), *(node.pages for node in nodes)])
    require(int(np.bincount(pages, minlength=1).max()) <= 1, "a page stands in the tree twice")
    require(num_pages == tree.num_pages, f"{num_pages} pages in the tree, {tree.num_pages} counted")
    require(len(nodes) == tree.num_nodes, f"{len(nodes)} nodes in the tree, {tree.num_nodes} counted")
    require(num_evictable == tree.num_evictable, f"{num_evictable} evictable, {tree.num_evictable} counted")
    _check_candidates(tree, nodes)
    _check_leases(tree, nodes)


def _check_children(node: Node, width: int) -> None:
    require(node.child_keys == [child.name for child in node.children], "child keys and children differ")
    require(node.child_keys == sorted(node.child_keys), "children are not sorted")
    for child in node.children:
        require(child.parent is node, "a child has another parent")
        require(child.start == node.start + len(node.key), "a child starts elsewhere")
        require(
            bool(child.whose) == node.is_shared, "a namespace's mark is missing, or stands where none parts"
        )
    starts = [(child.whose, child.key[:width]) for child in node.children if len(child.key) >= width]
    require(len(starts) == len(set(starts)), "two siblings start with the same whole page")
    for i, name in enumerate(node.child_keys):
        require(bisect_left(node.child_keys, name) == i, "a child cannot be found")


def _check_leases(tree: RadixCache, nodes: Sequence[Node]) -> None:
    """Ranks, classes' pages and owners' accounts are those of the leases that run."""
    on_node: dict[int, set[int]] = {}
    for lease in tree.leases.running():
        require(lease.node is not None, "a lease is over and runs")
        require(lease.end > tree.leases.now, "a lease outlives its end")
        step = lease.node
        while step is not None and step.parent is not None and step.start >= lease.start:
            require(not step.is_gone, "a lease is on a node that is gone")
            on_node.setdefault(id(step), set()).add(id(lease))
            start, step = step.start, step.parent
        require(start == lease.start, "a lease begins inside a node")
    pages_by_rank: dict[int, int] = {}
    of_owner: dict[bytes, int] = {}
    for node in nodes:
        pages_by_rank[node.rank] = pages_by_rank.get(node.rank, 0) + len(node.pages)
        above = node.parent.rank if node.parent is not None else 0
        require(node.rank < 0 or above >= 0, "something in use hangs on scratch")
        if not (node.leases or node.rank or node.is_shared or id(node) in on_node):
            continue  # under no lease, and of the rank of such
        require(
            {id(lease) for lease in node.leases} == on_node.get(id(node), set()), "a node has other leases"
        )
        require(not (node.is_shared and node.leases), "what is shared is leased")
        unleased = SHARED_RANK if node.is_shared else min(node.rank, 0)
        highest = max((lease.rank for lease in node.leases), default=unleased)
        require(node.rank == highest, "a node's rank is not that of its highest lease")
        for owner in {lease.owner for lease in node.leases}:
            of_owner[owner] = of_owner.get(owner, 0) + len(node.pages)
    pages = dict.fromkeys(EvictionClass, 0)
    for rank, count in pages_by_rank.items():
        pages[class_of(rank)] += count
    for kind in EvictionClass:
        counted = tree.order.num_pages(kind)
        require(
            kind is EvictionClass.PLAIN or pages[kind] == counted, f"{kind.name}: {counted} pages counted"
        )
    for owner, count in of_owner.items():
        require(tree.leases.pages_of(owner) == count <= tree.leases.limits.max_pages, "an owner's pages")
    require(len(tree.leases) == len(tree.leases.running()), "leases are counted wrong")


def _check_candidates(tree: RadixCache, nodes: Sequence[Node]) -> None:
    known = {id(node) for node in tree.order.candidates()}
    for node in nodes:
        if not node.children and not node.locks:
            require(id(node) in known, "an evictable node is not known to evict")
