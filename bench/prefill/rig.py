"""The engine in this process, timed from a prompt's token ids to its first new token: no HTTP, no tokenisation."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from deeproot.engine.config import ModelConfig
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import Runner
from deeproot.runtime.context.tokenizer import TokenIds
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Timed:
    """Prompts that came at once. `ttft_s`: of each, from then on; `cached`: prompt tokens of each that were reused."""

    ttft_s: tuple[float, ...]
    cached: tuple[int, ...]
    prompt_tokens: int

    @property
    def seconds(self) -> float:
        """Until the last of them has its first token."""
        return max(self.ttft_s)

    @property
    def computed(self) -> int:
        return self.prompt_tokens - sum(self.cached)


class Rig:
    """Runs prompts through the product's scheduler. For one thread."""

    def __init__(self, engine: LoadedEngine) -> None:
        self._scheduler = engine.scheduler
        runner = engine.scheduler.runner
        assert isinstance(runner, Runner)
        self.config: ModelConfig = runner.model.config
        self.window = engine.scheduler.config.max_model_len
        self.most_chunk = engine.scheduler.config.max_num_batched_tokens
        self._count = 0

    def with_chunk(self, chunk: int) -> None:
        """Compute at most `chunk` tokens a step from now on, with an empty cache.

        Raises ValueError if the engine was not made for so many.
        """
        if not 1 <= chunk <= self.most_chunk:
            raise ValueError(f"chunk is {chunk}; give 1 to {self.most_chunk} (--max-num-batched-tokens)")
        old = self._scheduler
        self.clear()
        config = replace(
            old.config, max_num_batched_tokens=chunk, max_num_seqs=min(old.config.max_num_seqs, chunk)
        )
        self._scheduler = Scheduler(config, RadixCache(old.cache.page_size), old.pool, old.runner)

    def clear(self) -> None:
        """Forget all cached prompts."""
        cache = self._scheduler.cache
        self._scheduler.pool.free(cache.evict(cache.num_pages))

    def run(self, prompts: Sequence[TokenIds]) -> Timed:
        """Each prompt's first token, all of them asked for at once. Raises RuntimeError if the engine refuses one."""
        rids = [f"bench-{self._count + i}" for i in range(len(prompts))]
        self._count += len(prompts)
        sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
        first: dict[str, float] = {}
        cached: dict[str, int] = {}
        started = time.perf_counter()
        for rid, prompt in zip(rids, prompts, strict=True):
            self._scheduler.add(AddRequest(rid, prompt.astype(np.int32).tobytes(), sampling))
        while self._scheduler.has_work:
            for output in self._scheduler.step():
                if output.error is not None:
                    raise RuntimeError(output.error)
                first[output.rid] = time.perf_counter() - started
                if output.usage is not None:
                    cached[output.rid] = output.usage.cached
        return Timed(
            tuple(first[rid] for rid in rids),
            tuple(cached[rid] for rid in rids),
            sum(int(prompt.size) for prompt in prompts),
        )


def random_ids(rng: np.random.Generator, count: int, vocab_size: int) -> TokenIds:
    """Fresh token ids: int32, shape [count]."""
    return rng.integers(0, vocab_size, count).astype(np.int32)
