"""Our own cache: the product's tree and page pool, driven as the scheduler does, without a model."""

from dataclasses import dataclass

import numpy as np
import torch

from deeproot.bench.cachesim.call import Call, Served
from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import MatchResult, Node
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.scheduler.admission import take_pages
from deeproot.scheduler.config import SchedulerConfig


@dataclass(slots=True)
class _Row:
    """A request's lock and pages; the first `borrowed` of them are the tree's."""

    node: Node
    pages: Int32Array
    borrowed: int


class OwnTree:
    """One request at a time. `num_pages`: size of the pool; `page_size`: tokens of a page; `chunk`: of a step at most."""

    def __init__(self, num_pages: int, page_size: int = 64, chunk: int = 1024) -> None:
        if chunk < 1:
            raise ValueError(f"chunk is {chunk}; give at least 1")
        self.chunk = chunk
        self._reserved = SchedulerConfig().reserved_output
        self.cache = RadixCache(page_size)
        # No layers: pages are numbers, and nothing is stored in them.
        self.pool = KVPool(KVLayout(0, 1, 1, page_size, torch.float32), num_pages)

    @property
    def name(self) -> str:
        return "deeproot"

    def serve(self, call: Call) -> Served:
        """As `CacheModel`. The last token of a prompt is always computed, since its logits are needed."""
        ids = call.computed_ids
        size = self.cache.page_size
        if -(-ids.size // size) > self.pool.num_pages:
            return Served(0, refused=True)
        match = self.cache.match(call.prompt.tobytes(), int(call.prompt.size) - 1)
        self.cache.lock(match.node)
        with_room = min(int(ids.size), int(call.prompt.size) + self._reserved - 1)
        own, reused = self._copied(match, -(-with_room // size))
        row = _Row(match.node, np.concatenate((match.pages, own)), len(match.pages))
        self._prefill(row, call.prompt, reused)
        self._grow(row, ids.size)
        self._insert(row, ids)
        self.pool.free(row.pages[row.borrowed :])
        self.cache.unlock(row.node)
        return Served(reused)

    def _prefill(self, row: "_Row", prompt: TokenIds, computed: int) -> None:
        """As the scheduler does: pages for a chunk, then its whole pages to the tree. A step of one token, as of a prompt
        that is cached but for its last, hands nothing over: near the pool's limit it matters what is freed when."""
        total = int(prompt.size)
        while computed < total:
            extend = min(self.chunk, total - computed)
            computed += extend
            self._grow(row, computed)
            if extend > 1:
                self._insert(row, prompt[: computed // self.cache.page_size * self.cache.page_size])

    def _grow(self, row: "_Row", num_tokens: int) -> None:
        missing = -(-num_tokens // self.cache.page_size) - len(row.pages)
        row.pages = np.concatenate((row.pages, take_pages(self.cache, self.pool, missing)))

    def _insert(self, row: "_Row", ids: TokenIds) -> None:
        """Hand computed tokens to the tree, and borrow them from there from now on (as `scheduler.holdings` does)."""
        if ids.size <= row.borrowed * self.cache.page_size:
            return
        given = row.pages[: -(-ids.size // self.cache.page_size)].copy()
        result = self.cache.insert(ids.tobytes(), given, row.node)
        row.pages[: len(result.pages)] = result.pages
        self.pool.free(given[row.borrowed : len(given) - result.num_owned])
        self.pool.free(result.dropped)
        row.node, row.borrowed = result.node, len(given)

    def _copied(self, match: MatchResult, wanted_pages: int) -> tuple[Int32Array, int]:
        """The page that a partial match is copied to, if any, and how many tokens are reused in all."""
        source = match.copy_from
        if source is None:
            return match.pages[:0], match.num_tokens
        self.cache.lock(source.node)
        fits = wanted_pages - len(match.pages) <= self.pool.num_free + self.cache.num_evictable
        # Where the page to copy from is the one that is missing, the scheduler does without it too.
        own = take_pages(self.cache, self.pool, 1) if fits else match.pages[:0]
        self.cache.unlock(source.node)
        return own, match.num_reusable if fits else match.num_tokens
