"""A model of SGLang's prefix cache (RadixAttention): a tree of runs of tokens, matched token by token.

As its paper and `sglang/srt/mem_cache/radix_cache.py` describe it, for pages of one token and of more:

- A lookup follows the tree as far as whole pages match, and splits a node where the match ends inside it. The last
  token of a prompt is never taken, so that at least one is computed.
- A lookup and an insertion count as a use of every node on their path.
- When slots are missing, whole leaves go, least recently used first, until enough are free; a parent without children
  is a leaf from then on. What the running request matched is locked.
"""

from collections.abc import Iterator

import numpy as np

from deeproot.bench.cachesim.call import Call, Served
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.tokenizer import TokenIds


class _Node:
    __slots__ = ("children", "key", "parent", "used")

    def __init__(self, key: TokenIds, parent: "_Node | None", used: int) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[bytes, _Node] = {}
        self.used = used


class SglangTree:
    """One request at a time. `num_tokens`: slots of the pool."""

    def __init__(self, num_tokens: int, page_size: int = 1) -> None:
        if num_tokens < 1 or page_size < 1:
            raise ValueError(f"num_tokens {num_tokens} and page_size {page_size} must be at least 1")
        self.page_size = page_size
        self.num_tokens = num_tokens // page_size * page_size
        self.num_cached = 0
        self._root = _Node(np.empty(0, dtype=np.int32), None, 0)
        self._clock = 0

    @property
    def name(self) -> str:
        return "SGLang"

    def serve(self, call: Call) -> Served:
        """As `CacheModel`."""
        ids = call.computed_ids
        needed = -(-ids.size // self.page_size) * self.page_size
        if needed > self.num_tokens:
            return Served(0, refused=True)
        self._clock += 1
        path, cached = self._walk(call.prompt[: self._whole(int(call.prompt.size) - 1)])
        self._evict(needed - cached - (self.num_tokens - self.num_cached), {id(node) for node in path})
        self._clock += 1
        self._insert(ids[: self._whole(int(ids.size))])
        return Served(cached)

    def _whole(self, tokens: int) -> int:
        return tokens // self.page_size * self.page_size

    def _walk(self, ids: TokenIds) -> tuple[list[_Node], int]:
        """The nodes that hold the longest cached prefix, the last one split to end there, and its length."""
        node, at = self._root, 0
        path = [node]
        while at < ids.size:
            child = node.children.get(self._first(ids, at))
            if child is None:
                break
            common = self._whole(common_prefix(child.key, ids[at:]))
            if common < child.key.size:
                child = self._split(child, common)
            child.used = self._clock
            node = child
            path.append(node)
            at += common
        return path, at

    def _insert(self, ids: TokenIds) -> None:
        path, at = self._walk(ids)
        if at < ids.size:
            path[-1].children[self._first(ids, at)] = _Node(ids[at:], path[-1], self._clock)
            self.num_cached += int(ids.size) - at

    def _first(self, ids: TokenIds, at: int) -> bytes:
        """By what a child is found: its first page. Never shorter than one, as all lengths are whole pages."""
        return ids[at : at + self.page_size].tobytes()

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two; returns the upper part, which keeps the time of last use."""
        assert node.parent is not None
        top = _Node(node.key[:at], node.parent, node.used)
        node.parent.children[self._first(node.key, 0)] = top
        node.key, node.parent = node.key[at:], top
        top.children[self._first(node.key, 0)] = node
        return top

    def _evict(self, missing: int, locked: set[int]) -> None:
        while missing > 0:
            leaf = min(
                (node for node in self._nodes(self._root) if not node.children and id(node) not in locked),
                key=lambda node: node.used,
            )
            assert leaf.parent is not None
            del leaf.parent.children[self._first(leaf.key, 0)]
            missing -= leaf.key.size
            self.num_cached -= int(leaf.key.size)

    def _nodes(self, top: _Node) -> Iterator[_Node]:
        stack = [top]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()
