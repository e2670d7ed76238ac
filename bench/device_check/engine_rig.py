"""The real engine over a model of random weights: how long prompts take, cold and cached, and how fast it decodes."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deeproot.engine.attention import BatchLimits
from deeproot.engine.attention_choice import (
    AttentionNeeds,
    AttentionSetup,
    choose_attention,
    make_backend,
    make_page_ops,
)
from deeproot.engine.config_hf import config_from_dict
from deeproot.engine.graphs import CudaCapture, DecodeGraphs, graph_sizes
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models import MODEL_CLASSES
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import Runner
from deeproot.engine.sampling_choice import choose_sampler
from deeproot.engine.weights import DummyWeights
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.messages import AddRequest, SamplingParams, TokenOutput
from deeproot.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """The model and what is asked of it."""

    model: dict[str, Any]
    """As `config.json` has it."""
    dtype: torch.dtype
    page: int
    pool_tokens: int
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    context: int
    """Tokens of each decoding request at its start."""
    steps: int
    """Decode steps that are timed."""
    rounds: int
    step_tokens: int


@dataclass(frozen=True, slots=True)
class Variant:
    """How the engine is run."""

    attention: str
    graphs: bool
    overlap: bool


class Rig:
    """One engine. Raises AttentionError if the attention of its variant cannot be used here."""

    def __init__(self, sizes: EngineSizes, variant: Variant, device: torch.device, seed: int) -> None:
        self.sizes, self.device = sizes, device
        self._rng = np.random.default_rng(seed)
        self._count = 0
        config = config_from_dict(sizes.model)
        self._vocabulary = config.vocab_size
        model = MODEL_CLASSES[config.architecture](config, DummyWeights(sizes.dtype, device), device)
        layout = config.kv_layout(sizes.page, sizes.dtype)
        needs = AttentionNeeds(device, sizes.dtype, layout, config.num_qo_heads)
        name = choose_attention(variant.attention, needs).name
        pool = KVPool(layout, sizes.pool_tokens // sizes.page, device, ops=make_page_ops(name))
        prefill_steps = max(sizes.batches) * sizes.context // sizes.step_tokens
        max_len = max(*sizes.prompts, sizes.context + prefill_steps + sizes.steps) + 256
        max_seqs = max(sizes.batches) + 1
        limits = BatchLimits(max_seqs, sizes.step_tokens, max_len)
        scale, cap = config.attention_scale, config.attention_soft_cap
        setup = AttentionSetup(pool, sizes.dtype, config.num_qo_heads, limits, scale, cap)
        attention = make_backend(name, setup)
        graphs = None
        if variant.graphs:
            graphs = DecodeGraphs(model, pool, attention, graph_sizes(max_seqs), device, CudaCapture())
        self.runner = Runner(model, pool, attention, device, graphs, choose_sampler(device))
        started = time.perf_counter()
        self.runner.capture_graphs()
        self.capture_seconds = time.perf_counter() - started
        scheduler_config = SchedulerConfig(
            max_seqs, sizes.step_tokens, max_len, variant.overlap, policy="fcfs"
        )
        self.scheduler = Scheduler(scheduler_config, RadixCache(sizes.page), pool, self.runner)

    def fresh(self, num_tokens: int) -> list[int]:
        """Random tokens that are in no cache."""
        ids: list[int] = self._rng.integers(0, self._vocabulary, num_tokens).tolist()
        return ids

    def add(self, ids: list[int], max_tokens: int) -> str:
        self._count += 1
        rid = str(self._count)
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, seed=0)
        self.scheduler.add(AddRequest(rid, np.asarray(ids, np.int32).tobytes(), sampling))
        return rid

    def run_until(self, done: Callable[[list[TokenOutput]], bool]) -> None:
        """Step until a step's outputs satisfy `done`. Raises RuntimeError if a request fails or none is left."""
        while self.scheduler.has_work:
            outputs = self.scheduler.step()
            for output in outputs:
                if output.error is not None:
                    raise RuntimeError(output.error)
            if done(outputs):
                return
        raise RuntimeError("all requests ended before what was waited for")

    def finish(self) -> None:
        """Run what is left, and check that nothing of any request stays."""
        for request in [*self.scheduler.waiting, *self.scheduler.table.running()]:
            self.scheduler.abort(request.rid)
        self.scheduler.drain()
        check_idle(self.scheduler)


def measure_engine(rig: Rig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and figures of each measurement, in seconds unless said."""
    _ttft(rig, rig.fresh(rig.sizes.prompts[0]))  # compiles
    for length in rig.sizes.prompts:
        yield f"ttft {length}", _cold_and_cached(rig, length)
    for batch in rig.sizes.batches:
        yield f"decode {batch}", _decode(rig, batch)
    yield "mixed", _mixed(rig)
    graphs = len(rig.runner.graphs) if rig.runner.graphs is not None else 0
    yield "graphs", {"count": graphs, "capture": rig.capture_seconds}


def _cold_and_cached(rig: Rig, length: int) -> dict[str, float]:
    """Median time to the first token of a prompt of which nothing, or all but the last page, is cached."""
    cold, cached = [], []
    for _ in range(rig.sizes.rounds):
        ids = rig.fresh(length)
        cold.append(_ttft(rig, ids))
        tail = rig.fresh(min(rig.sizes.page, length // 2))
        cached.append(_ttft(rig, ids[: length - len(tail)] + tail))
    return {"cold": statistics.median(cold), "cached": statistics.median(cached)}


def _ttft(rig: Rig, ids: list[int]) -> float:
    started = time.perf_counter()
    rig.add(ids, 1)
    rig.run_until(bool)
    seconds = time.perf_counter() - started
    rig.finish()
    return seconds


def _decode(rig: Rig, batch: int) -> dict[str, float]:
    """Seconds a step, and tokens a second, of `batch` requests that decode together."""
    steps = rig.sizes.steps
    for _ in range(batch):
        rig.add(rig.fresh(rig.sizes.context), rig.sizes.pool_tokens)
    rig.run_until(lambda outputs: len(outputs) == batch)
    for _ in range(4):
        rig.scheduler.step()
    started = time.perf_counter()
    for _ in range(steps):
        rig.scheduler.step()
    seconds = (time.perf_counter() - started) / steps
    rig.finish()
    return {"step": seconds, "tokens_per_s": batch / seconds}


def _mixed(rig: Rig) -> dict[str, float]:
    """What a long prompt costs requests that decode: their steps while it is computed, and its first token."""
    batch, length = rig.sizes.batches[-1], rig.sizes.prompts[-1]
    for _ in range(batch):
        rig.add(rig.fresh(rig.sizes.context), rig.sizes.pool_tokens)
    rig.run_until(lambda outputs: len(outputs) == batch)
    started = last = time.perf_counter()
    prompt = rig.add(rig.fresh(length), 1)
    spans = []

    def arrived(outputs: list[TokenOutput]) -> bool:
        nonlocal last
        now = time.perf_counter()
        if outputs:
            spans.append(now - last)
            last = now
        return any(output.rid == prompt for output in outputs)

    rig.run_until(arrived)
    first_token = time.perf_counter() - started
    rig.finish()
    return {"ttft": first_token, "step_median": statistics.median(spans), "step_max": max(spans)}
