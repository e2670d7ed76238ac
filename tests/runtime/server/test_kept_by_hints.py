"""The trace of `hints_live` on real servers with a tiny model: what leases, sessions and their order keep, by the servers' counters."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.hints_live import count_tokens
from deeproot.bench.hints_player import play
from deeproot.bench.hints_trace import Shape
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.config import EvictionPolicy

from .harness import RunningServer, running_server, tokens_accounted

PAGE_BYTES = 2 * 2 * 2 * 8 * 4 * 16
"""K and V of two layers with two heads of eight numbers, float32, sixteen tokens."""
SHAPE = Shape(sessions=8, turns=3, root=20, task=15, output=40, most=150, cold=20, cold_words=40)
SEED = 3


def played(options: EngineOptions, policy: EvictionPolicy) -> dict[str, float]:
    """The server's counters at the end; every request was answered."""
    with running_server(replace(options, radix_eviction_policy=policy)) as server:
        answers, _ = asyncio.run(play(server.url, SHAPE, SEED, one_by_one=True))
        assert [answer.error for answer in answers if answer.error] == []
        assert len(answers) == SHAPE.sessions * SHAPE.turns + SHAPE.cold
        server.wait_idle()
        found = server.metrics()
        assert tokens_accounted(found)
        return found


def test_hints_keep_more_than_least_recently_used_and_refuse_nothing(
    server: RunningServer, tiny_options: EngineOptions, tmp_path: Path
) -> None:
    working, longest = count_tokens(server.url, SHAPE, SEED)
    tokens = max(
        working // 4, longest + 256
    )  # a byte is a token, and calls have more white space than was counted
    assert tokens < working // 2
    model = write_tiny_model(tmp_path / "tiny", max_position_embeddings=8192)
    options = replace(
        tiny_options,
        model=str(model),
        kv_cache_memory_bytes=tokens // 16 * PAGE_BYTES,
        max_num_batched_tokens=512,
    )
    hints, lru = played(options, "hints"), played(options, "lru")
    prompts, cached = "deeproot_prompt_tokens_total", "deeproot_cached_tokens_total"
    assert hints[prompts] == pytest.approx(lru[prompts], rel=0.02), "another trace"
    assert hints[cached] / hints[prompts] > 1.03 * lru[cached] / lru[prompts]
    assert min(hints["deeproot_evicted_pages_total"], lru["deeproot_evicted_pages_total"]) > tokens // 16
    of_class = {
        zone: f'deeproot_cache_hit_tokens_total{{class="{zone}"}}' for zone in ("root", "trunk", "leaf")
    }
    assert all(lru[name] == 0 for name in of_class.values())
    assert hints[of_class["root"]] > 0
