"""A server with a tiny model that several tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.runtime.options import EngineOptions

from .harness import RunningServer, ScriptedForward, running_server


@pytest.fixture(scope="session")
def tiny_options(tiny_model: Path) -> EngineOptions:
    return EngineOptions(
        model=str(tiny_model),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=8 * 2**20,
        max_num_seqs=8,
        max_num_batched_tokens=128,
    )


@pytest.fixture(scope="module")
def server(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    """One server a file."""
    with running_server(
        tiny_options,
        wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer),
    ) as running:
        yield running


@pytest.fixture
def script(server: RunningServer) -> ScriptedForward:
    runner = server.engine.scheduler.runner
    assert isinstance(runner, ScriptedForward)
    return runner
