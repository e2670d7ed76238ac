"""What no program prints but somebody might: numbers, lengths and marks without end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.filters.cells import Clusters
from deeproot.runtime.context.filters.pipeline import Pipeline


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[" + "9" * 100_000 + "Cx",
        "\x1b[" + "0" * 5_000 + "1Cx",
        "\x1b[999999999;999999999Hx" * 50,
        "a\r\x1b[99999999@\x1b[99999999L\x1b[99999999S" * 50,
        "\x1b]0;" * 20_000,
        "x" * 1_000_000,
        bytes(range(256)).decode("utf-8", "replace") * 200,
        "@@ -1," + "9" * 5_000 + " +1 @@\n a\n",
    ],
    ids=lambda text: ascii(text[:12]),
)
def test_hostile_numbers_and_lengths_neither_raise_nor_grow(text: str) -> None:
    result = Pipeline(count_tokens=len).run(text)
    assert len(result.text) <= max(len(text), 100_000)


@settings(max_examples=200)
@given(st.text("ae\u0301\u200d\x1b\n漢", max_size=12))
def test_units_are_a_character_and_the_marks_behind_it(text: str) -> None:
    units: list[str] = []
    for char in text:
        if char in "\u0301\u200d" and units and units[-1] >= " ":
            units[-1] += char
        else:
            units.append(char)
    clusters = Clusters()
    encoded = clusters.encode(text)
    assert clusters.decode(encoded) == text
    assert len(encoded) == sum(1 + unit.startswith("漢") for unit in units)
