"""Triton's interpreter computes rightly."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from mended_interpreter import mended_interpreter
from tests.engine.gguf_samples import fill_sample, write


@pytest.fixture(autouse=True, scope="session")
def right_numbers() -> Iterator[None]:
    with mended_interpreter():
        yield


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "sample.gguf", fill_sample)
