"""What a request costs on the host beside the model, in microseconds, and what a cached token costs in bytes.

    python -m deeproot.bench.host_path

The prefix tree is driven as the scheduler drives it, and decode steps run through the real scheduler with a runner that has
no model. Figures are medians; run it on one quiet core.
"""

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import torch

from deeproot.bench.report.text import text_table
from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import PendingSampled
from deeproot.runtime.flags import whole
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.messages import AddRequest, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler

VOCAB = 150_000
_BATCHES = (8, 64, 256)
_NEW = 2_000
"""Tokens of an agent's turn."""
_RUN = 100_000
"""Tokens of each of the sequences that are evicted from."""


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


def median_us(call: Callable[[], object], times: int) -> float:
    """Median microseconds of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


class Tree:
    """A prefix tree that is given sequences of random tokens, with page numbers that nobody owns."""

    def __init__(self, page_size: int) -> None:
        self.cache = RadixCache(page_size)
        self._page_size = page_size
        self._rng = np.random.default_rng(3)

    def ids(self, count: int) -> bytes:
        return self._rng.integers(4, VOCAB, count).astype(np.int32).tobytes()

    def insert(self, ids: bytes) -> None:
        self.cache.insert(ids, self.pages(len(ids) // 4))

    def pages(self, num_tokens: int) -> Int32Array:
        return np.arange(-(-num_tokens // self._page_size), dtype=np.int32)


def turn_us(context: int, page_size: int, times: int) -> float:
    """One agent turn on a cached context: match, lock, insert what is new, unlock."""
    tree = Tree(page_size)
    base = tree.ids(context)
    tree.insert(base)
    prompts = iter([base + tree.ids(_NEW) for _ in range(times)])
    pages = tree.pages(context + _NEW)

    def turn() -> None:
        ids = next(prompts)
        node = tree.cache.match(ids).node
        tree.cache.lock(node)
        tree.cache.unlock(tree.cache.insert(ids, pages, held=node).node)

    return median_us(turn, times)


def match_us(context: int, page_size: int, times: int) -> float:
    """Matching a context that is cached whole."""
    tree = Tree(page_size)
    ids = tree.ids(context)
    tree.insert(ids)
    return median_us(lambda: tree.cache.match(ids), times)


def evict_us(cached: int, evicted: int, page_size: int) -> tuple[float, float]:
    """Evicting so many tokens of a full tree, again and again; and the bytes that each token in it takes."""
    tree = Tree(page_size)
    prompts = [tree.ids(min(_RUN, cached)) for _ in range(max(1, cached // _RUN))]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for ids in prompts:
        tree.insert(ids)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    tokens = sum(map(len, prompts)) // 4
    times = max(1, tokens // evicted // 2)
    return median_us(lambda: tree.cache.evict(evicted // page_size), times), held / tokens


def measure(context: int, page_size: int, times: int) -> list[tuple[str, str]]:
    """Names and figures. context: tokens of the longest one."""
    rows = [(f"turn, {context:,} + {_NEW:,} tokens, µs", f"{turn_us(context, page_size, times):.1f}")]
    rows += [
        (f"match {length:,} tokens, µs", f"{match_us(length, page_size, times):.1f}")
        for length in (context // 100, context // 10, context)
    ]
    cached, evicted = 10 * context, context // 10
    evict, num_bytes = evict_us(cached, evicted, page_size)
    rows.append((f"evict {evicted:,} tokens of {cached:,}, µs", f"{evict:.1f}"))
    rows.append(("bytes a cached token", f"{num_bytes:.1f}"))
    for batch in _BATCHES:
        decode = Decode(page_size, batch, 1_000)
        rows.append((f"decode step of {batch} requests, µs", f"{median_us(decode.step, times):.1f}"))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--context", type=whole(1_000), default=100_000, help="tokens (default: %(default)s)")
    parser.add_argument("--page-size", type=whole(1), default=16, help="tokens (default: %(default)s)")
    parser.add_argument(
        "--times", type=whole(1, 1_400), default=400, help="of each call (default: %(default)s)"
    )
    args = parser.parse_args(argv)
    print(text_table(("", "median"), measure(args.context, args.page_size, args.times)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
