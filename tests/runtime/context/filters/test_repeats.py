"""Repeated outputs and superseded views become pointers that lead somewhere."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.base import (
    FilterContext,
)
from deeproot.runtime.context.filters.observation import Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline
from deeproot.runtime.context.filters.repeats import RepeatFilter
from deeproot.runtime.context.filters.superseded import SupersededReadFilter

from .outputs import FIXTURES, log_of

LONG = "On branch main\nnothing to commit, working tree clean, as it was before\n"


def test_repeat_names_the_first_with_count_and_time() -> None:
    log = log_of((LONG, None, ()), ("x", None, ()), (LONG, None, ()), (LONG, None, ()))
    assert RepeatFilter().apply(LONG, FilterContext(log, 0)).text == LONG
    assert RepeatFilter().apply(LONG, FilterContext(log, 2)).text == "[same output as #10: time 2, 2 s later]"
    assert RepeatFilter().apply(LONG, FilterContext(log, 3)).text == "[same output as #10: time 3, 3 s later]"


def test_repeat_after_a_revert_stays_in_full() -> None:
    """The first view was superseded, so a pointer to it would lead nowhere."""
    view = "line\n" * 30
    log = log_of((view, "/a", ()), ("", None, ("/a",)), ("", None, ("/a",)), (view, "/a", ()))
    pipeline = Pipeline(count_tokens=len)
    assert pipeline.run(view, FilterContext(log, 0)).text.startswith("[stale view of /a")
    assert pipeline.run(view, FilterContext(log, 3)).text == view


ITEM = st.tuples(
    st.sampled_from([LONG, LONG + "x", "short"]),
    st.sampled_from([None, "/a", "/b"]),
    st.sampled_from([(), ("/a",), ("/b",)]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ITEM, max_size=14), st.integers(1, 6))
def test_every_pointer_leads_to_a_full_text_or_to_a_change(
    items: list[tuple[str, str | None, tuple[str, ...]]], window: int
) -> None:
    log = log_of(*items)
    pipeline = Pipeline((SupersededReadFilter(), RepeatFilter(window=window)), count_tokens=len)
    texts = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(len(log))]
    for i, text in enumerate(texts):
        if text.startswith("[same output as #"):
            first = int(text[17:].split(":")[0]) - 10
            assert i - window <= first < i
            assert texts[first] == log[i].text
        elif text.startswith("[stale view"):
            by = int(text.rsplit("#", 1)[1].rstrip("]")) - 10
            assert by > i
            assert log[i].action.shows in log[by].action.changes
        else:
            assert text == log[i].text


@settings(max_examples=100, deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=10))
def test_a_tombstone_does_not_change_when_the_log_grows(
    items: list[tuple[str, str | None, tuple[str, ...]]],
) -> None:
    """But for the one step from a view, or a repeat of it, to the pointer to its change."""
    before: list[str] = []
    for n in range(1, len(items) + 1):
        log = log_of(*items[:n])
        pipeline = Pipeline((SupersededReadFilter(), RepeatFilter()), count_tokens=len)
        now = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(n)]
        for old, new in zip(before, now, strict=False):
            assert new == old or (new.startswith("[stale view") and not old.startswith("[stale view"))
        before = now


def pydicom() -> ObservationLog:
    run = json.loads((FIXTURES / "sweagent_pydicom_1458.traj.json").read_text())
    reader, log = ActionReader(), ObservationLog()
    for i, step in enumerate(run["trajectory"]):
        log.append(Observation(i, reader.command(step["action"], step["observation"]), step["observation"]))
    return log


def test_superseded_reads_of_the_pydicom_run() -> None:
    """Read off the run by hand: the new script is edited (1) and removed (10), the handler opened (4) and edited (8);
    the edits 5, 6 and 7 were rejected, so they changed nothing; 7 answers as 6 did."""
    log = pydicom()
    found = {i: by for i in range(len(log)) if (by := log.superseded_by(i)) is not None}
    assert found == {0: 1, 1: 10, 4: 8}
    pipeline = Pipeline(count_tokens=len)
    texts = [pipeline.run(log[i].text, FilterContext(log, i)).text for i in range(len(log))]
    handler = "/pydicom__pydicom/pydicom/pixel_data_handlers/numpy_handler.py"
    assert texts[4] == f"[stale view of {handler}, 103 lines: changed by #8]"
    assert texts[1] == "[stale view of /pydicom__pydicom/reproduce_bug.py, 21 lines: changed by #10]"
    assert texts[7] == "[same output as #6: time 2]"
    assert texts[0] == log[0].text  # the pointer would be longer than the view
    assert all(texts[i] == log[i].text for i in (2, 3, 5, 6, 8, 9, 10, 11))
