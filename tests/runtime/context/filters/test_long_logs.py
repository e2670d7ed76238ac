"""Filters over many observations: the same as a slow reading of the rules, and work in proportion to the log."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.events import Event, EventKind, payload_hash
from deeproot.runtime.context.filters.base import Filter, FilterContext
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import default_filters, diff_filters
from deeproot.runtime.context.filters.repeats import RepeatFilter
from deeproot.runtime.context.pipeline_filter import PipelineFilter

LONG = "the same words as ever, long enough that a pointer is shorter than they are: {}"
paths = st.sampled_from([None, "/a", "/b"])
actions = st.lists(
    st.tuples(
        st.sampled_from("xyz"), paths, st.sets(st.sampled_from(["/a", "/b"])), st.sampled_from([1, 1, 1, 9])
    ),
    max_size=40,
)


@settings(max_examples=300)
@given(actions, st.integers(1, 12))
def test_repeats_are_those_of_the_plain_rule(
    steps: list[tuple[str, str | None, set[str], int]], window: int
) -> None:
    log = ObservationLog()
    seq = 0
    for letter, shows, changes, gap in steps:
        seq += gap
        log.append(Observation(seq, Action("c", shows, tuple(sorted(changes))), LONG.format(letter)))
    for index in range(len(log)):
        kept: int | None = None
        count = 0
        for i in range(index + 1):
            same = (log[i].text, log[i].action.shows) == (log[index].text, log[index].action.shows)
            changed = any(log[index].action.shows in log[k].action.changes for k in range(i + 1, index + 1))
            if not same or changed:
                continue
            if kept is None or i - kept > window:
                kept, count = i, 0
            count += 1
        text = RepeatFilter(window=window).apply(log[index].text, FilterContext(log, index)).text
        if kept == index:
            assert text == log[index].text
        else:
            assert kept is not None
            assert text == f"[same output as #{log[kept].seq}: time {count}]"


def operations(run: Callable[[], None]) -> int:
    """How many Python operations `run` takes."""
    done = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal done
        frame.f_trace_opcodes = True
        done += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return done


def feed(filters: tuple[Filter, ...], count: int) -> None:
    """A run that polls, reads one file again and again, and edits another after each view of it."""
    made = PipelineFilter(len, filters, extract_over=None)
    commands = (
        ("git status", "nothing to commit, working tree clean, as it was before and before that\n"),
        ("cat /repo/a.py", "x = 1\ny = 2\n"),
        ("cat /repo/b.py", "z = 1\n" * 20),
        ("sed -i s/1/2/ /repo/b.py", ""),
    )
    for n in range(count):
        command, output = commands[n % len(commands)]
        event = Event(n + 1, n, EventKind.TOOL_RESULT, payload_hash(b""), 0, None, 0, {"action": command})
        made.add(event, output, None)
        made.take_superseded()


@pytest.mark.parametrize("filters", [default_filters, diff_filters])
def test_work_grows_with_the_log_not_with_its_square(filters: Callable[[], tuple[Filter, ...]]) -> None:
    feed(filters(), 8)  # what is imported and compiled once
    short = operations(lambda: feed(filters(), 200))
    long = operations(lambda: feed(filters(), 800))
    assert long < 5 * short  # 4 times the log; its square would be 16 times


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([{"working_dir": "/repo"}, {"working_dir": "/repo"}], "/repo/a.py"),
        (['{"working_dir": "/old"}', '{"working_dir": "/repo"}'], "/repo/a.py"),
        ([None, None], "a.py"),
        (["no json", {"working_dir": 3}], "a.py"),
        (["[1]", {"working_dir": "n/a"}], "a.py"),
    ],
)
def test_the_working_directory_that_swe_agent_tells_is_used(states: list[Any], shown: str) -> None:
    made = PipelineFilter(len)
    for n, (state, command, output) in enumerate(
        [(states[0], "ls", "a.py"), (states[1], "cat a.py", "x = 1\n" * 20)]
    ):
        data = {"action": command, "state": state}
        event = Event(n + 1, n, EventKind.TOOL_RESULT, payload_hash(b""), 0, None, 0, data)
        assert made.add(event, output, None).shows == (shown if n else None)
