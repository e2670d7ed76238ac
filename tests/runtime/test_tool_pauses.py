"""Durations of tools, against a plain count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.tool_pauses import ToolPauses


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=64))
def test_the_longest_of_twenty_but_one_decides(durations: list[float]) -> None:
    pauses = ToolPauses()
    for i, seconds in enumerate(durations):
        pauses.called(b"", [(str(i), "tool")], 10.0)
        pauses.returned(b"", [str(i), "unknown"], 10.0 + seconds)
    expected = pauses.expected(b"", ["tool"])
    shorter = sum((10.0 + seconds) - 10.0 <= expected / 1.25 + 1e-9 for seconds in durations)
    assert shorter >= 0.95 * len(durations) or expected == 2.0
    assert expected <= max(2.0, 1.25 * max(durations) + 1e-9)


def test_only_the_latest_count_and_only_the_owners_own() -> None:
    pauses = ToolPauses()
    for i, seconds in enumerate([500.0] * 10 + [4.0] * 64):
        pauses.called(b"a", [(str(i), "tool")], 0.0)
        pauses.returned(b"b", [str(i)], 1.0)
        pauses.returned(b"a", [str(i)], seconds)
        pauses.returned(b"a", [str(i)], 900.0)
    assert pauses.expected(b"a", ["tool"]) == pytest.approx(5.0)
    assert pauses.expected(b"b", ["tool"]) == pauses.expected(b"a", ["other"]) == 60.0
    assert pauses.expected(b"a", ["tool", "other"]) == 60.0
    assert pauses.expected(b"a", []) == 0.0


def test_calls_made_together_take_as_long_as_all_and_count_once() -> None:
    pauses = ToolPauses()
    pauses.called(b"", [("1", "slow"), ("2", "quick"), ("3", "quick")], 0.0)
    pauses.returned(b"", ["1", "2", "3"], 8.0)
    assert pauses.expected(b"", ["quick"]) == pauses.expected(b"", ["slow"]) == 10.0
    assert [len(line) for line in pauses._durations.values()] == [1, 1]
