"""The product's own tree and scheduler behind the interface that a host-path harness drives.

What is timed is what a request costs on the host beside the model: match, lock, insert, evict, and the scheduling of
a decode step. The interface: `match(ids) -> (tokens, pages, node)`, `insert(ids, pages) -> (tokens had, node)`,
`lock`, `unlock`, `evict(tokens) -> pages`, and `Decode(page, batch, ctx).step()`.
"""

import numpy as np
import torch

from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import Node
from deeproot.engine.runner import PendingSampled
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler

VOCAB = 150_000


class NullRunner:
    """Samples made-up tokens without a model."""

    def __init__(self, batch: int) -> None:
        token_ids = np.random.default_rng(0).integers(4, VOCAB, batch).astype(np.int32)
        self.tokens = PendingSampled(torch.from_numpy(token_ids))

    def launch(self, batch: object) -> PendingSampled:
        return self.tokens


class Decode:
    """Decode steps of `batch` requests of about `ctx` tokens through the real scheduler, without a model."""

    def __init__(self, page: int, batch: int, ctx: int) -> None:
        longest = ctx + 2048
        pool = KVPool(KVLayout(0, 1, 1, page, torch.float32), batch * -(-longest // page))
        config = SchedulerConfig(batch, batch * longest, longest)
        self.scheduler = Scheduler(config, RadixCache(page), pool, NullRunner(batch))
        rng = np.random.default_rng(1)
        sampling = SamplingParams(max_tokens=1500, temperature=0.0, seed=0, stop_token_ids=(2, 3))
        for i in range(batch):
            prompt = rng.integers(4, VOCAB, ctx + i % max(page, 16)).astype(np.int32)
            self.scheduler.add(AddRequest(str(i), prompt.tobytes(), sampling))
        while self.scheduler.waiting:
            self.scheduler.step()

    def step(self) -> list[TokenOutput]:
        return self.scheduler.step()


class Cache:
    """`RadixCache` under the harness's names; `evict` counts tokens there."""

    IDS = "bytes"
    Decode = Decode

    def __init__(self, page_size: int, num_pages: int) -> None:
        self.page_size = page_size
        self.tree = RadixCache(page_size)
        self.lock = self.tree.lock
        self.unlock = self.tree.unlock

    def match(self, ids: bytes) -> tuple[int, Int32Array, Node]:
        found = self.tree.match(ids)
        return found.num_tokens, found.pages, found.node

    def insert(self, ids: bytes, pages: Int32Array) -> tuple[int, Node]:
        result = self.tree.insert(ids, np.asarray(pages, dtype=np.int32))
        return len(ids) // 4 - result.num_owned * self.page_size, result.node

    def evict(self, n: int) -> Int32Array:
        return self.tree.evict(-(-n // self.page_size))
