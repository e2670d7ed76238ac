"""Fixtures that several packages' tests share."""

import os
from pathlib import Path

# Read by Triton when a kernel is defined, so it must stand before any import of one. Compiling is tested in a
# process of its own.
os.environ["TRITON_INTERPRET"] = "1"

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real small model, as `scripts/test` has fetched it."""
    home = Path(os.environ.get("DEEPROOT_HOME") or Path.home() / ".cache" / "deeproot")
    path = home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail(f"{path} is missing: run scripts/test, which fetches it")
    return path
