"""A conversation whose calls are explained."""

from pathlib import Path

import pytest

from deeproot.engine.gguf import GGUFFile
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conversation import Talk


@pytest.fixture(scope="session")
def smol(smollm2_path: Path) -> Tokenizer:
    with GGUFFile(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


@pytest.fixture
def talk(smol: Tokenizer) -> Talk:
    return Talk(smol)
