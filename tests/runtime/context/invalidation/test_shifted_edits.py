"""Edits by line number, against files whose every line is told apart."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.shifted_edits import LineHistory, range_edits
from deeproot.runtime.context.swe_agent import import_trajectory

PYDICOM = Path(__file__).parents[1] / "fixtures" / "sweagent_pydicom_1458.traj.json"


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_an_edit_is_stale_where_the_model_has_seen_another_text(data: st.DataObject) -> None:
    """Files only grow here, so that no two edits cancel out."""
    lines = [f"start {i}" for i in range(10)]
    history, believed = LineHistory(), {}
    for seq in range(1, data.draw(st.integers(1, 15), label="steps") + 1):
        first = data.draw(st.integers(1, len(lines)))
        last = data.draw(st.integers(first, min(first + 4, len(lines))))
        wanted = range(first, last + 1)
        if data.draw(st.booleans(), label="show"):
            history.show(seq, wanted)
            believed.update({line: lines[line - 1] for line in wanted})
            continue
        found = history.check(seq, "f", first, last)
        assert found.stale == any(line in believed and believed[line] != lines[line - 1] for line in wanted)
        assert (found.shown is None) == any(line not in believed for line in wanted)
        grown = data.draw(st.integers(0, 3), label="grown")
        lines[first - 1 : last] = [f"event {seq}, {i}" for i in range(len(wanted) + grown)]
        history.edit(seq, first, last, grown)


def pydicom(*more: dict[str, str]) -> EventLog:
    log = EventLog.memory()
    document = json.loads(PYDICOM.read_text())
    document["trajectory"][9:9] = [
        {"observation": "", "response": "", "thought": "", **step} for step in more
    ]
    import_trajectory(log, document)
    return log


def test_the_edits_of_the_pydicom_run() -> None:
    """Read off the run by hand: three refused edits changed nothing, the file was edited once, and each range had been
    shown since."""
    found = range_edits(pydicom())
    assert [(e.seq, e.first, e.last, e.shown, e.moved_by) for e in found] == [
        (4, 1, 1, 3, None),
        (12, 287, 295, 11, None),
        (14, 287, 295, 13, None),
        (16, 287, 295, 15, None),
        (18, 287, 296, 17, None),
    ]


def test_a_further_edit_by_the_old_numbers_would_have_been_found() -> None:
    """The edit of event 18 made the file one line longer above line 369, which only event 11 had shown."""
    further = {"action": "edit 369:370\n    return arr\nend_of_edit\n", "state": "{}"}
    found = range_edits(pydicom(further))
    assert [(e.seq, e.first, e.last, e.shown, e.moved_by) for e in found if e.stale] == [
        (20, 369, 370, 11, 18)
    ]
