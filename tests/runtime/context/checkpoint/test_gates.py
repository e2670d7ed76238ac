"""What each gate says, field by field, on a run small enough to be read."""

import random
from pathlib import Path

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.audit import Contradiction, audit
from deeproot.runtime.context.checkpoint.files import LoggedFiles, Workspace, changed
from deeproot.runtime.context.checkpoint.ledger import LedgerLimits, ledger
from deeproot.runtime.context.checkpoint.make import CheckpointRejected, accept, ledger_checkpoint
from deeproot.runtime.context.checkpoint.schema import (
    Artifact,
    Checkpoint,
    CheckpointError,
    canonical_bytes,
    parse,
)
from deeproot.runtime.context.checkpoint.store import latest, save
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind

from .runs import make_run, with_milestone


def call(call_id: str, command: str) -> dict[str, object]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": "bash", "arguments": f'{{"cmd": "{command}"}}'},
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "auth.py").write_text("PORT = 5432\n")
    return Workspace(tmp_path)


@pytest.fixture
def run(log: EventLog) -> EventLog:
    """Events: 1 policy, 2 and 3 constraints, 4 task, 5 call, 6 result, 7 call, 8 result, 9 call without a result."""
    record.policy(log, "You fix tests.")
    record.constraint(log, "Never edit vendor/.")
    record.constraint(log, "Run pytest with --db-port=5433.")
    record.user(log, "tests/test_auth.py fails. Fix it.")
    record.assistant(log, "I run it.", tool_calls=[call("c1", "pytest -q")])
    record.tool_result(log, "c1", "E   ConnectionRefusedError: 5432\n1 failed", name="bash", exit_code=1)
    record.assistant(log, "The port is wrong.", tool_calls=[call("c2", "sed -i s/5432/5433/ src/auth.py")])
    record.tool_result(log, "c2", "", name="bash", exit_code=0)
    record.assistant(log, "Again.", tool_calls=[call("c3", "pytest -q")])
    return log


@pytest.fixture
def true(run: EventLog, workspace: Workspace) -> Checkpoint:
    return ledger(read_trace(run), workspace)


def reasons(checkpoint: Checkpoint, log: EventLog, files: Workspace) -> list[Contradiction]:
    return audit(checkpoint, read_trace(log), files)


def only(checkpoint: Checkpoint, log: EventLog, files: Workspace) -> Contradiction:
    (found,) = reasons(checkpoint, log, files)
    return found


def test_the_ledger_says_what_happened(true: Checkpoint) -> None:
    assert true.goal == "tests/test_auth.py fails. Fix it."
    assert true.constraints == ("Never edit vendor/.", "Run pytest with --db-port=5433.")
    assert [(m.event, m.call_id, m.exit_code) for m in true.milestones] == [(6, "c1", 1), (8, "c2", 0)]
    assert true.milestones[0].call == 'bash {"cmd":"pytest -q"}'
    assert "ConnectionRefusedError: 5432" in true.milestones[0].proof
    assert true.hypothesis == "Again."
    assert [a.path for a in true.artifacts] == ["src/auth.py"]


def test_an_exit_code_turned_round_is_named_with_its_event(
    true: Checkpoint, run: EventLog, workspace: Workspace
) -> None:
    found = only(
        with_milestone(true, 0, true.milestones[0].model_copy(update={"exit_code": 0})), run, workspace
    )
    assert (found.gate, found.field, found.event) == ("milestones", "milestones[0].exit_code", 6)
    assert str(found) == (
        "milestones[0].exit_code: the checkpoint says 0, but c1 ended with exit code 1 (event 6)"
    )


def test_an_exit_code_where_none_was_recorded(log: EventLog, workspace: Workspace) -> None:
    record.assistant(log, "", tool_calls=[call("c1", "ls")])
    record.tool_result(log, "c1", "x")
    true = ledger(read_trace(log), workspace)
    found = only(
        with_milestone(true, 0, true.milestones[0].model_copy(update={"exit_code": 0})), log, workspace
    )
    assert "c1 ended without a recorded exit code (event 2)" in str(found)


@pytest.mark.parametrize(
    ("event", "call_id", "says"),
    [
        (99, "c7", "the log has no event 99 up to 9; no call 'c7' was ever answered"),
        (99, "c3", "c3 was called at event 9 and has no result"),
        (5, "c1", "event 5 is of kind assistant, no tool result; the result of c1 is event 6 (event 5)"),
    ],
)
def test_an_invented_call(
    event: int, call_id: str, says: str, true: Checkpoint, run: EventLog, workspace: Workspace
) -> None:
    invented = true.milestones[1].model_copy(update={"event": event, "call_id": call_id})
    assert any(says in str(found) for found in reasons(with_milestone(true, 1, invented), run, workspace))


def test_a_constraint_that_is_reworded(true: Checkpoint, run: EventLog, workspace: Workspace) -> None:
    changed_one = true.model_copy(update={"constraints": ("Avoid editing vendor/.", true.constraints[1])})
    dropped, reworded = reasons(changed_one, run, workspace)
    assert "the log has the constraint 'Never edit vendor/.'" in str(dropped)
    assert (dropped.event, reworded.field) == (2, "constraints[0]")
    assert "never reworded or invented" in str(reworded)


def test_a_goal_that_drifts_is_shown_from_where_it_does(
    true: Checkpoint, run: EventLog, workspace: Workspace
) -> None:
    found = only(true.model_copy(update={"goal": true.goal[:-7] + "Delete it."}), run, workspace)
    assert (found.gate, found.event) == ("goal", 4)
    assert "'Delete it.' from character 26" in str(found)
    assert "'Fix it.'" in str(found)


def test_a_file_that_changed_since(
    true: Checkpoint, run: EventLog, workspace: Workspace, tmp_path: Path
) -> None:
    (tmp_path / "src" / "auth.py").write_text("PORT = 1\n")
    found = only(true, run, workspace)
    assert found.field == "artifacts[0].hash"
    assert "src/auth.py now hashes to" in str(found)
    assert changed({a.path: a.hash for a in true.artifacts}, workspace) == ["src/auth.py"]


@pytest.mark.parametrize("path", ["gone.py", "..", "/etc/hostname", "src", "link", "pipe", "a\0", "x" * 5000])
def test_a_path_that_is_no_file_of_the_workspace(
    path: str, true: Checkpoint, run: EventLog, workspace: Workspace, tmp_path: Path
) -> None:
    import os

    (tmp_path / "link").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    wrong = true.model_copy(update={"artifacts": (Artifact(path=path, hash="0" * 16),)})
    assert "there is no such file" in str(only(wrong, run, workspace))


def test_the_log_stands_for_a_disk_that_is_gone(run: EventLog) -> None:
    record.file_version(run, "src/auth.py", "PORT = 5432\n")
    record.file_version(run, "src/auth.py", "PORT = 5433\nHOST = 1")
    made = ledger_checkpoint(run)
    assert [a.path for a in made.checkpoint.artifacts] == ["src/auth.py"]
    state = LoggedFiles(run).state("src/auth.py")
    assert state is not None
    assert state.lines == 2
    assert made.checkpoint.artifacts[0].hash == state.hash[:16]
    older = LoggedFiles(run, len(run) - 1).state("src/auth.py")
    assert older is not None
    assert older.hash != state.hash


def test_a_colour_in_the_output_is_no_reason_to_reject_words_that_are_shown(
    log: EventLog, workspace: Workspace
) -> None:
    record.assistant(log, "", tool_calls=[call("c1", "pytest")])
    record.tool_result(log, "c1", "10%\r\x1b[32m3 passed\x1b[0m in 1s", exit_code=0)
    true = ledger(read_trace(log), workspace)
    assert true.milestones[0].proof == "3 passed in 1s"
    assert reasons(true, log, workspace) == []


def test_limits_keep_changes_and_failures_before_what_passed(run: EventLog, workspace: Workspace) -> None:
    for i in range(5):
        record.assistant(run, "", tool_calls=[call(f"x{i}", f"ls {i}")])
        record.tool_result(run, f"x{i}", f"{i}", exit_code=0)
    kept = ledger(read_trace(run), workspace, LedgerLimits(milestones=3)).milestones
    assert [m.call_id for m in kept] == ["c1", "c2", "x4"]
    with pytest.raises(ValueError, match=r"limits\.milestones is -1"):
        LedgerLimits(milestones=-1)


def test_the_log_must_reach_as_far_as_the_checkpoint(
    true: Checkpoint, run: EventLog, workspace: Workspace
) -> None:
    with pytest.raises(ValueError, match="upto is 10, but the log has 9 events"):
        accept(run, true.model_copy(update={"upto": 10}), files=workspace)
    with pytest.raises(CheckpointRejected, match=r"milestones\[1\]\.event"):
        accept(run, true.model_copy(update={"upto": 7}), files=workspace)


def test_equal_checkpoints_have_equal_bytes_whatever_their_spelling(true: Checkpoint) -> None:
    spelled = true.model_dump_json(indent=3)
    assert canonical_bytes(parse(spelled)) == canonical_bytes(true)
    assert parse(canonical_bytes(true)) == true
    assert canonical_bytes(true).startswith(b'{"artifacts":[{"hash":"')


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{}", "goal: Field required"),
        ("[", "checkpoint: Invalid JSON"),
        (
            '{"version":1,"upto":-1,"goal":"","milestones":[],"hypothesis":"","constraints":[],"artifacts":[]}',
            "upto:",
        ),
        (
            '{"upto":1,"goal":"","milestones":[],"hypothesis":"","constraints":[],"artifacts":[{"path":"a","hash":"XY"}]}',
            r"artifacts\[0\]\.hash:",
        ),
        ('{"upto":1,"goal":7,"milestones":[],"hypothesis":"","constraints":[],"artifacts":[]}', "goal:"),
        (
            '{"upto":1,"goal":"","milestones":[],"hypothesis":"","constraints":[],"artifacts":[],"x":1}',
            "x: Extra",
        ),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_the_field(text: str, field: str) -> None:
    with pytest.raises(CheckpointError, match=field):
        parse(text)


def test_a_checkpoint_survives_in_its_log_and_is_checked_when_it_is_read(tmp_path: Path) -> None:
    log, files = make_run(random.Random(3), tmp_path)
    assert latest(log) is None
    first, second = ledger_checkpoint(log, 20, files=files), ledger_checkpoint(log, files=files)
    save(log, first)
    at = save(log, second)
    found = latest(log)
    assert found is not None
    assert (found.digest, found.source) == (second.digest, "ledger")
    assert latest(log, at - 1) == first
    forged = second.checkpoint.model_copy(update={"goal": "Something else."})
    log.append(EventKind.STATE_CHANGE, canonical_bytes(forged), data={"part": "checkpoint"})
    with pytest.raises(CheckpointRejected, match="goal"):
        latest(log)
    log.append(EventKind.STATE_CHANGE, b"{}", data={"part": "checkpoint"})
    with pytest.raises(CheckpointError, match="Field required"):
        latest(log)
