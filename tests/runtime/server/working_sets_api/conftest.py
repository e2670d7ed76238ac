"""A server with room for many sets, and clients of it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.remote_working_sets import WorkingSets

from ..harness import RunningServer, ScriptedForward, running_server
from .sets import TEMPLATE


@pytest.fixture(scope="module")
def options(tiny_options: EngineOptions) -> EngineOptions:
    """A template that knows tools, and room for a prompt that names some."""
    return dataclasses.replace(tiny_options, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def server(options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(
        options,
        ServerOptions(port=0, max_working_sets=10_000),
        wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def sets(server: RunningServer) -> Iterator[WorkingSets]:
    with WorkingSets(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    """What sends bodies that the Python client would not."""
    with httpx.Client(base_url=f"{server.url}/v1/working_sets/") as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> TokenizersAdapter:
    """The client's own: of another library than the server's."""
    return TokenizersAdapter.from_file(tiny_model / "tokenizer.json")
