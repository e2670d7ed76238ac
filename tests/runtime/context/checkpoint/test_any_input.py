"""Whatever a log holds, its ledger passes the gates; whatever a model writes, it is refused or true."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.checkpoint.audit import Contradiction, audit
from deeproot.runtime.context.checkpoint.files import FileState, LoggedFiles, Snapshot, Workspace
from deeproot.runtime.context.checkpoint.ledger import ledger
from deeproot.runtime.context.checkpoint.make import ledger_checkpoint
from deeproot.runtime.context.checkpoint.proposal import Proposal, complete, read_proposal
from deeproot.runtime.context.checkpoint.schema import CheckpointError, canonical_bytes, digest, parse
from deeproot.runtime.context.checkpoint.store import latest, save
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind

from .test_gates import call

words = st.text(max_size=30) | st.sampled_from(
    ["\ud800", "\x1b[31mred\r\n", "</artifact>", "a" * 500, "E   x: y\n1 failed"]
)
ids = st.sampled_from(["c1", "c2", "", "\ud800", "call_x"]) | st.none()
functions = st.fixed_dictionaries({"name": words | st.just("bash"), "arguments": words | st.just('{"cmd": "sed -i s/a/b/ x.py"}')})  # fmt: skip
calls = st.fixed_dictionaries({}, optional={"id": ids, "function": functions})
new_events = st.one_of(
    st.builds(
        NewEvent,
        st.just(EventKind.INSTRUCTION),
        words,
        st.sampled_from(
            [{"role": "user"}, {"role": "system", "part": "constraint"}, {"role": "user", "part": "demo"}, {}]
        ),
    ),
    st.builds(
        NewEvent,
        st.just(EventKind.ASSISTANT),
        words,
        st.builds(
            lambda made: {"role": "assistant", "message": {"tool_calls": made}}, st.lists(calls, max_size=2)
        ),
        ids,
    ),
    st.builds(
        NewEvent,
        st.just(EventKind.TOOL_RESULT),
        words | st.binary(max_size=30),
        st.just({"role": "tool"}),
        ids,
        st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 2),
    ),
    st.builds(NewEvent, st.just(EventKind.FILE_VERSION), words, st.builds(lambda uri: {"uri": uri}, words)),
)


def log_of(events: list[NewEvent]) -> EventLog:
    log = EventLog.memory(clock=lambda: 0)
    log.extend(events)
    return log


@settings(max_examples=150, deadline=None)
@given(st.lists(new_events, max_size=12))
def test_the_ledger_of_any_log_is_audited_saved_and_found_again(events: list[NewEvent]) -> None:
    log = log_of(events)
    made = ledger_checkpoint(log)
    assert parse(canonical_bytes(made.checkpoint)) == made.checkpoint
    save(log, made)
    found = latest(log)
    assert found is not None
    assert found.digest == made.digest == digest(made.checkpoint)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_what_is_read_is_a_checkpoint_or_an_error_that_says_why(text: bytes | str) -> None:
    with pytest.raises(CheckpointError):
        parse(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda v: st.lists(v, max_size=3),
    max_leaves=5,
)
likely = st.fixed_dictionaries(
    {
        "milestones": st.lists(
            st.fixed_dictionaries(
                {"event": st.integers(-1, 9), "call_id": st.sampled_from(["c1", "c2", "x"]), "exit_code": st.sampled_from([None, 0, 1])},
                optional={"proof": words, "call": words, "output_digest": words},
            ),
            max_size=3,
        ),
        "hypothesis": words,
    },
    optional={"artifacts": json_values, "goal": words | json_values, "constraints": st.lists(words, max_size=2) | json_values},
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(likely | st.dictionaries(words, json_values, max_size=3))
def test_no_answer_of_a_model_is_taken_unless_it_is_so(answer: dict[str, Any]) -> None:
    log = log_of(
        [
            NewEvent(EventKind.INSTRUCTION, "task", {"role": "user"}),
            NewEvent(EventKind.INSTRUCTION, "Never.", {"role": "system", "part": "constraint"}),
            NewEvent(EventKind.ASSISTANT, "", {"message": {"tool_calls": [call("c1", "ls")]}}),
            NewEvent(EventKind.TOOL_RESULT, "out", {"role": "tool"}, "c1", 1),
        ]
    )
    proposal = read_proposal(json.dumps(answer))
    if isinstance(proposal, Contradiction):
        assert proposal.gate == "schema"
        return
    trace, files = read_trace(log), LoggedFiles(log)
    checkpoint = complete(proposal, trace, files)
    if audit(checkpoint, trace, files) == []:
        assert (checkpoint.goal, checkpoint.artifacts) == ("task", ())
        assert "Never." in checkpoint.constraints
        for milestone in checkpoint.milestones:
            assert (milestone.event, milestone.call_id, milestone.exit_code) == (4, "c1", 1)
            assert milestone.proof in "out"
    assert isinstance(proposal, Proposal)


class Restless:
    """A disk on which another program writes all the time."""

    def __init__(self) -> None:
        self.asked = 0

    def name(self, uri: str) -> str | None:
        return "x.py"

    def state(self, path: str) -> FileState | None:
        self.asked += 1
        return FileState(f"{self.asked:064x}"[::-1], 1)


def test_the_ledger_is_held_against_the_disk_that_it_was_written_from(log: EventLog) -> None:
    log.append(EventKind.ASSISTANT, "", data={"message": {"tool_calls": [call("c1", "sed -i s/a/b/ x.py")]}})
    log.append(EventKind.TOOL_RESULT, "", data={"role": "tool"}, call_id="c1", exit_code=0)
    disk = Restless()
    made = ledger_checkpoint(log, files=disk)
    assert [a.path for a in made.checkpoint.artifacts] == ["x.py"]
    assert disk.asked == 1
    trace = read_trace(log)
    assert audit(ledger(trace, disk), trace, disk) != []  # without the snapshot it would not hold
    assert audit(ledger(trace, snap := Snapshot(disk)), trace, snap) == []


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=words | st.sampled_from(["..", "../..", "/", "/etc/passwd", ".", "a/../../b", "file:///etc/passwd"])
)
def test_no_path_leads_out_of_the_workspace(path: str, tmp_path: Path) -> None:
    files = Workspace(tmp_path)
    assert files.state(path) is None
    name = files.name(path)
    assert name is None or not Path(name).is_absolute()
