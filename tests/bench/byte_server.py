"""A server with a tiny random model whose tokens are bytes, for benchmarks that ask servers."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deeproot.runtime.options import EngineOptions

from ..runtime.server.harness import RunningServer, running_server
from ..runtime.tiny_model import write_tiny_model


@contextlib.contextmanager
def byte_server(folder: Path, window: int, **changes: Any) -> Iterator[RunningServer]:
    """folder: for the model. window: in tokens. changes: of EngineOptions."""
    options: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "float32",
        "device": "cpu",
        "page_size": 16,
        "kv_cache_memory_bytes": 64 * 2**20,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 4096,
    }
    model = write_tiny_model(folder / "tiny", max_position_embeddings=window)
    with running_server(EngineOptions(model=str(model), **options | changes)) as running:
        yield running
