"""The prefix tree over cached pages. No tensors: token ids are int32 bytes, pages are numbers.

A node holds a run of token ids as one bytes object and the pages in which their K and V lie. What the tree relies
on, and `scheduler.invariants` checks:

- Nodes start at page borders. Only a childless node may end inside a page; its last page is then part-filled.
- Siblings have less than a whole page in common, so at most one child can match a whole page. Children are sorted
  by their ids' bytes, so that the child with the longest common prefix is a neighbour of the place where the
  searched ids would stand.
- A lock on a node counts on all its ancestors, so the pages of unlocked nodes are exactly those that can go.
- The cost of every operation is per node and per compared byte, never per page or per token: one memcmp a node.
- Sequences of different namespaces part at the root, or at the end of a declared segment with which they begin: there
  each child's key stands behind its namespace's mark, so that no search meets another's. Declared segments are whole
  pages, in nodes of their own. All share the pages' memory and the order of eviction.
"""

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from deeproot.engine.batch import Int32Array
from deeproot.engine.eviction import SHARED_RANK, EvictionOrder
from deeproot.engine.ghosts import Ghosts
from deeproot.engine.leases import Leases
from deeproot.engine.radix_node import (
    NO_CHILDREN,
    NO_KEYS,
    NO_PAGES,
    SHARED,
    TOKEN_BYTES,
    CopySource,
    InsertResult,
    MatchResult,
    Node,
    Route,
    mark_of,
)
from deeproot.engine.radix_search import Place, find

# A childless node is lengthened in place up to this many bytes, so that a prompt that arrives in many chunks, or a
# conversation in many turns, does not leave a node each; the bound keeps the copy of the longer key cheap.
_MERGE_BYTES = 16_384 * TOKEN_BYTES
_UNNAMED = Route(mark_of(b""))


class RadixCache:
    """Prefix tree with token-exact matches, locks, leases and eviction by class and last use."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(b"", NO_PAGES, None, whose=SHARED)
        self.ghosts = Ghosts()
        self.num_pages = 0
        """Pages that belong to the tree."""
        self.num_evictable = 0
        """Those of them that no lock protects."""
        self.num_nodes = 0
        self._page_bytes = page_size * TOKEN_BYTES
        self.order = EvictionOrder()
        self.leases = Leases(self.order)

    def route(self, namespace: bytes, num_shared: int) -> Route:
        """Of a namespace's prompt whose first `num_shared` tokens are a declared segment: its whole pages are shared."""
        return Route(mark_of(namespace), num_shared // self.page_size * self._page_bytes)

    def match(self, ids: bytes, limit: int | None = None, route: Route = _UNNAMED) -> MatchResult:
        """Longest cached prefix of the first `limit` tokens of `ids` (all by default); counts as a use.

        ids: int32 bytes. The result's pages and copy source stay cached only while they are locked.
        """
        end = len(ids) if limit is None else limit * TOKEN_BYTES
        place = find(self.root, ids, end, self._page_bytes, route)
        node, offset, path = self._split_at(place)
        copy_from = None
        child, rest = place.child, place.common % self._page_bytes // TOKEN_BYTES
        if child is not None and rest:
            # Not a use of the child: the caller's copy will soon be in the tree itself.
            copy_from = CopySource(int(child.pages[0]), rest, child)
        self.order.touch(node)
        return MatchResult(node, _join(path), offset // TOKEN_BYTES, copy_from)

    def probe(self, ids: bytes, route: Route = _UNNAMED) -> int:
        """Tokens of `ids` (int32 bytes) that a match would find. Changes nothing, not even recency."""
        place = find(self.root, ids, len(ids), self._page_bytes, route)
        return (place.offset + place.common) // TOKEN_BYTES

    def once_cached(self, ids: bytes, match: MatchResult, limit: int, route: Route = _UNNAMED) -> int:
        """Tokens of the first `limit` of `ids` that a match would have found had nothing been evicted of late."""
        start, end = match.num_tokens * TOKEN_BYTES, limit * TOKEN_BYTES
        return max(match.num_reusable, self.ghosts.reach(ids, start, end, route) // TOKEN_BYTES)

    def insert(
        self, ids: bytes, pages: Int32Array, held: Node | None = None, route: Route = _UNNAMED
    ) -> InsertResult:
        """Give the tree the pages that hold `ids`; what it has already stays as it is.

        ids: int32 bytes from the start of a sequence. pages: `[ceil(tokens / page_size)]` int32, the last one may
        be part-filled. held: the caller's lock, a node on this path; it is moved to the returned node.
        """
        place = find(self.root, ids, len(ids), self._page_bytes, route)
        node, offset, path = self._split_at(place)
        child, rest = place.child, place.common % self._page_bytes
        num_owned, dropped = 0, NO_PAGES
        if offset + rest < len(ids):
            if child is not None and rest == len(child.key) and not child.locks:
                dropped = self._remove(child)
            new_pages = pages[offset // self._page_bytes :].copy()
            node = self._append(node, ids, offset, new_pages, held, route)
            path.append(new_pages)
            num_owned = len(new_pages)
        elif child is not None and rest:
            first_page = child if len(child.pages) == 1 else self._split(child, self._page_bytes)
            self.order.touch(first_page)
        if held is not None and held is not node:
            self.lock(node)
            self.unlock(held)
        self.order.touch(node)
        return InsertResult(node, _join(path), num_owned, dropped)

    def lock(self, node: Node) -> None:
        """Keep the pages from the root to the end of `node` from being evicted; calls nest."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                self.num_evictable -= len(step.pages)
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Take back one `lock`."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                raise RuntimeError("unlock without a lock")
            step.locks -= 1
            if step.locks == 0:
                self.num_evictable += len(step.pages)
            step = step.parent
        self.order.offer(node)

    def evict(self, n: int) -> Int32Array:
        """Take up to `n` pages out of the tree, lowest class and least recently used first, from the ends of branches
        inwards.

        Returns the pages, fewer than `n` when locks leave no more.
        """
        taken: list[Int32Array] = []
        gone: list[Node] = []
        missing = n
        while missing > 0 and (node := self.order.pop()) is not None:
            if len(node.pages) > missing:
                self._split(node, (len(node.pages) - missing) * self._page_bytes)
            pages = self._remove(node)
            missing -= len(pages)
            taken.append(pages)
            gone.append(node)
        self.ghosts.add(gone)
        return _join(taken)

    def join(self, node: Node) -> bool:
        """Put a node and its parent together where nobody could tell the difference; `node` stays the handle."""
        parent = node.parent
        if parent is None or parent.parent is None or len(parent.children) > 1 or parent.used > node.used:
            return False
        alike = (parent.locks, parent.rank, parent.leases) == (node.locks, node.rank, node.leases)
        alike = alike and parent.is_shared == node.is_shared
        if not alike or len(parent.key) + len(node.key) > _MERGE_BYTES:
            return False
        above = parent.parent
        i = bisect_left(above.child_keys, parent.name)
        node.key, node.pages = parent.key + node.key, np.concatenate((parent.pages, node.pages))
        node.whose = parent.whose
        above.child_keys[i], above.children[i] = node.name, node
        node.start, node.parent = parent.start, above
        parent.pages, parent.child_keys, parent.children = NO_PAGES, NO_KEYS, NO_CHILDREN
        self.order.forget(parent)
        self.num_nodes -= 1
        return True

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents first. Walks the whole tree: for checks and displays."""
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)

    def node_at(self, node: Node, end: int) -> Node:
        """The ancestor of `node`, or itself, that ends at byte `end` of its sequence, a page border; split if need be."""
        while node.start >= end and node.parent is not None:
            node = node.parent
        return self._split(node, end - node.start) if node.end > end else node

    def _split_at(self, place: Place) -> tuple[Node, int, list[Int32Array]]:
        """Make the whole pages of a match end at a node: (that node, offset in bytes, pages of its path)."""
        whole = place.common // self._page_bytes * self._page_bytes
        child = place.child
        if child is None or whole == 0:
            return place.node, place.offset, place.path
        top = child if whole == len(child.key) else self._split(child, whole)
        return top, place.offset + whole, [*place.path, top.pages]

    def _split(self, node: Node, num_bytes: int) -> Node:
        """Cut a node in two at a page border; `node` stays the lower part, so that locks on it keep their reach."""
        parent = node.parent
        assert parent is not None
        num_pages = num_bytes // self._page_bytes
        top = Node(node.key[:num_bytes], node.pages[:num_pages].copy(), parent, node.start, node.whose)
        i = bisect_left(parent.child_keys, node.name)
        parent.child_keys[i], parent.children[i] = top.name, top
        node.key, node.pages, node.parent = node.key[num_bytes:], node.pages[num_pages:].copy(), top
        node.start += num_bytes
        node.whose = SHARED if node.is_shared else b""
        top.child_keys, top.children = [node.name], [node]
        top.locks, top.used, top.rank, top.leases = node.locks, node.used, node.rank, node.leases
        self.num_nodes += 1
        return top

    def _append(
        self, node: Node, ids: bytes, offset: int, pages: Int32Array, held: Node | None, route: Route
    ) -> Node:
        """Add `ids[offset:]` below `node`, what is shared in nodes of its own."""
        cut = max(offset, min(route.shared, len(ids)))
        num_shared = -((offset - cut) // self._page_bytes)
        if offset < cut:
            node = self._append_run(node, ids[offset:cut], pages[:num_shared], held, SHARED)
        if cut < len(ids):
            node = self._append_run(node, ids[cut:], pages[num_shared:], held, route.whose(cut))
        return node

    def _append_run(self, node: Node, key: bytes, pages: Int32Array, held: Node | None, whose: bytes) -> Node:
        """Add a run of tokens below `node`, in place where nobody else could tell the difference."""
        self.num_pages += len(pages)
        rank = SHARED_RANK if whose == SHARED else 0
        mine = node.locks == (1 if held is node else 0) and node.is_shared == (whose == SHARED)
        if (
            node.parent is not None
            and not node.children
            and mine
            and node.rank == rank
            and not node.leases
            and len(node.key) + len(key) <= _MERGE_BYTES
        ):
            self._set_key(node, node.key + key)
            node.pages = np.concatenate((node.pages, pages))
            if not node.locks:
                self.num_evictable += len(pages)
            self.order.grew(node, len(pages))
            return node
        if node.rank < 0:
            self.order.revive(node)
        leaf = Node(key, pages, node, node.start + len(node.key), whose)
        if not node.children:
            node.child_keys, node.children = [leaf.name], [leaf]
        else:
            i = bisect_left(node.child_keys, leaf.name)
            node.child_keys.insert(i, leaf.name)
            node.children.insert(i, leaf)
        self.num_nodes += 1
        self.num_evictable += len(pages)
        self.order.set_rank(leaf, rank)
        return leaf

    def _remove(self, node: Node) -> Int32Array:
        """Take a childless node out of the tree; it still knows its parent. Returns its pages."""
        parent = node.parent
        assert parent is not None
        if len(parent.children) == 1:
            parent.child_keys, parent.children = NO_KEYS, NO_CHILDREN
        else:
            i = bisect_left(parent.child_keys, node.name)
            del parent.child_keys[i], parent.children[i]
        self.num_nodes -= 1
        pages = node.pages
        self.num_pages -= len(pages)
        self.num_evictable -= len(pages)
        if node.leases:
            self.leases.removed(node)
        self.order.remove(node)
        node.pages = NO_PAGES
        # Whoever used the child used its ancestors.
        if parent.used < node.used:
            self.order.set_used(parent, node.used)
        if not parent.children:
            self.order.offer(parent)
        return pages

    def _set_key(self, node: Node, key: bytes) -> None:
        """Lengthen a node's run; its order among its siblings does not change."""
        parent = node.parent
        assert parent is not None
        i = bisect_left(parent.child_keys, node.name)
        node.key = key
        parent.child_keys[i] = node.name


def _join(parts: list[Int32Array]) -> Int32Array:
    return np.concatenate(parts) if parts else NO_PAGES
