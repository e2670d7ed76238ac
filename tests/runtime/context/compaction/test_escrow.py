"""Which diagnostics are open, by hand and on real runs."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.compaction.escrow import MORE, Escrow, diagnose
from deeproot.runtime.context.compaction.turns import Call, TurnReader, all_calls
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.swe_agent import import_trajectory

FIXTURES = Path(__file__).parents[1] / "fixtures"
PYTEST = "FAILED tests/test_a.py::test_x - assert 1 == 2\n1 failed in 0.1s"


def run(seq: int, command: str, result: str, exit_code: int | None = 0) -> Call:
    return Call(seq, "bash", command, True, result, exit_code)


def open_after(*calls: Call) -> list[int]:
    escrow = Escrow()
    escrow.follow(calls)
    return [found.seq for found in escrow.open()]


def test_a_failure_is_open_until_the_same_command_passes() -> None:
    failed, passed = run(1, "pytest tests/test_a.py", PYTEST, 1), run(2, "pytest tests/test_a.py", "1 passed")
    assert open_after(failed) == [1]
    assert open_after(failed, passed) == []
    assert open_after(failed, passed, run(3, "pytest tests/test_a.py", PYTEST, 1)) == [3]


def test_what_the_newest_run_of_a_command_says_counts() -> None:
    assert open_after(run(1, "make", "a.c:3:5: error: x", 2), run(2, "make", "b.c:9:1: error: y", 2)) == [2]


@pytest.mark.parametrize(
    ("later", "still"),
    [
        ("pytest", False),  # all of them, so these too
        ("cd /repo && pytest -q 2>&1 | tail -5", False),
        ("python -m pytest -x", False),
        ("pytest -k other", True),
        ("pytest tests/test_b.py", True),
        ("cat tests/test_a.py", True),
        ("cargo test", True),
    ],
)
def test_only_a_run_that_is_no_narrower_closes(later: str, still: bool) -> None:
    failed = run(1, "pytest tests/test_a.py", PYTEST, 1)
    assert open_after(failed, run(2, later, "ok")) == ([1] if still else [])


def test_errors_of_no_known_format_are_closed_by_a_success_of_the_tool() -> None:
    failed = Call(1, "book", '{"amount": 1}', False, "Error: payment amount does not add up", None)
    assert open_after(failed) == [1]
    assert open_after(failed, Call(2, "search", "{}", False, "[]", None)) == [1]
    assert open_after(failed, Call(3, "book", '{"amount": 2}', False, '{"id": "X"}', None)) == []


def test_texts_that_are_shown_are_no_failures() -> None:
    assert (
        open_after(
            run(1, "cat build.log", "a.c:3:5: error: x"), run(2, "grep -rn error src", "src/a.c: error")
        )
        == []
    )


def test_a_fatal_line_in_the_middle_is_kept() -> None:
    text = "\n".join(
        [
            *(f"failed attempt {i}" for i in range(200)),
            "FATAL: no lease",
            *(f"error: retry {i}" for i in range(200)),
        ]
    )
    found, _ = diagnose(run(1, "./deploy", text, 1))
    assert found is not None
    assert "FATAL: no lease" in found.text
    assert found.text.count("\n") < 60
    assert "more failing lines in the archive" in found.text


@given(st.text(max_size=400), st.sampled_from([None, 0, 1, 127]), st.text(max_size=40))
def test_any_output_is_read_and_its_words_are_verbatim(text: str, code: int | None, command: str) -> None:
    found, _ = diagnose(run(1, command, text, code))
    if code == 1 and command == "x":
        assert found is not None
    if found is not None and found.text != f"exit code {code}, no output":
        lines = {line.rstrip("\r") for line in text.split("\n")}
        assert all(line in lines for line in found.text.split("\n") if not line.endswith(MORE))


def test_the_pydicom_run() -> None:
    """A traceback and three failed edits open one after the other; the edit that worked and the rerun close them."""
    with EventLog.memory() as log:
        import_trajectory(log, json.loads((FIXTURES / "sweagent_pydicom_1458.traj.json").read_text()))
        turns = TurnReader(log, lambda seq: None).turns([e.seq for e in log.read()])
    calls = all_calls(turns)
    history = [open_after(*calls[:n]) for n in range(1, len(calls) + 1)]
    first = calls[2].seq
    assert history[:3] == [[], [], [first]]
    assert all(first in now for now in history[2:9])
    assert [len(now) for now in history[5:9]] == [2, 3, 3, 1]
    assert history[9:] == [[], [], []]
