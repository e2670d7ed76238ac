"""Triton's interpreter computes rightly."""

from collections.abc import Iterator

import pytest
from mended_interpreter import mended_interpreter


@pytest.fixture(autouse=True, scope="session")
def right_numbers() -> Iterator[None]:
    with mended_interpreter():
        yield
