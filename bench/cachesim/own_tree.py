"""Our own cache: the product's tree and page pool, driven as the scheduler does, without a model."""

import numpy as np
import torch

from deeproot.bench.cachesim.call import Call, Served
from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import MatchResult
from deeproot.scheduler.admission import take_pages


class OwnTree:
    """One request at a time. `num_pages`: size of the pool; `page_size`: tokens of a page."""

    def __init__(self, num_pages: int, page_size: int = 64) -> None:
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
        own, reused = self._copied(match, -(-int(call.prompt.size) // size))
        missing = -(-ids.size // size) - len(match.pages) - len(own)
        pages = np.concatenate((match.pages, own, take_pages(self.cache, self.pool, missing)))
        result = self.cache.insert(ids.tobytes(), pages, match.node)
        self.pool.free(pages[len(match.pages) : len(pages) - result.num_owned])
        self.pool.free(result.dropped)
        self.cache.unlock(result.node)
        return Served(reused)

    def _copied(self, match: MatchResult, prompt_pages: int) -> tuple[Int32Array, int]:
        """The page that a partial match is copied to, if any, and how many tokens are reused in all."""
        source = match.copy_from
        if source is None:
            return match.pages[:0], match.num_tokens
        self.cache.lock(source.node)
        fits = prompt_pages - len(match.pages) <= self.pool.num_free + self.cache.num_evictable
        # Where the page to copy from is the one that is missing, the scheduler does without it too.
        own = take_pages(self.cache, self.pool, 1) if fits else match.pages[:0]
        self.cache.unlock(source.node)
        return own, match.num_reusable if fits else match.num_tokens
