"""The examples of docs/filters.md do what they show."""

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "filters.md"


def test_examples_of_the_page() -> None:
    result = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert result.attempted > 20
    assert result.failed == 0
