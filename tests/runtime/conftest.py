"""Fixtures of the tests that run a whole engine."""

from pathlib import Path

import pytest

from .tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model's folder; load it with `load_format="dummy"`."""
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
