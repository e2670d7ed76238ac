"""A server whose tiny model has a template that drops thinking when the user speaks."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tokenizers

from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet
from deeproot.runtime.options import EngineOptions

from ..server.harness import RunningServer, ScriptedForward, running_server
from ..tiny_model import write_tiny_model
from .conftest import template_source

PAGE = 16


def thinking_model(folder: Path) -> Path:
    """A tiny model's folder."""
    model = write_tiny_model(folder, max_position_embeddings=16_384)
    path = model / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template_source("qwen3")}))
    return model


@contextmanager
def thinking_server(folder: Path) -> Iterator[RunningServer]:
    """A server of that model, which says what a test wants (`ScriptedForward`)."""
    options = EngineOptions(
        model=str(folder), load_format="dummy", dtype="float32", device="cpu", page_size=PAGE,
        kv_cache_memory_bytes=32 * 2**20, max_num_seqs=4, max_num_batched_tokens=4_096,
    )  # fmt: skip
    with running_server(
        options, wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer)
    ) as running:
        yield running


def thinking_set(folder: Path, **options: object) -> WorkingSet:
    """A working set with that model's tokenizer and template."""
    return WorkingSet(
        policy=ThreeZones(60_000),
        tokenizer=TokenizersAdapter(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))),
        template=ChatTemplate(template_source("qwen3")),
        **options,  # type: ignore[arg-type]
    )
