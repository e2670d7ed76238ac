"""The loop against a scripted model: a whole run, what its prompts are, and where it ends."""

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED, TURNS
from deeproot.runtime.agent.setup import begin
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event
from deeproot.runtime.context.measure.actions import read_run

from .runs import Seen, go, result_of, run_session, run_task, said_to, settings_for
from .scripted import Reply, ToolCall, scripted_server


def test_a_whole_run(log: EventLog, workspace: Path) -> None:
    server, seen, end = go(
        log,
        workspace,
        Reply("I look.", [ToolCall("read", {"path": "a.py"})], reasoning="where is it"),
        Reply("", [ToolCall("patch", {"path": "a.py", "old": "5432", "new": "5433"})]),
        Reply("", [ToolCall("run", {"command": "cat a.py"})]),
        Reply("Done."),
    )
    assert end == ANSWERED
    assert (workspace / "a.py").read_text() == "PORT = 5433\n"
    assert "PORT = 5433" in result_of(server, "c2-0")
    first = said_to(server, 1)[2]
    assert first["reasoning_content"] == "where is it"
    assert first["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "a.py"}'}
    assert "no longer so: #8" in seen.notes
    assert "PORT = 5432" not in str(
        [m["content"] for m in said_to(server) if "read/c0-0" in str(m["content"])]
    )
    assert [call.name for turn in read_run(log).actions for call in turn.calls] == ["read", "patch", "run"]
    assert len(seen.staged) == 4


def test_the_prompt_only_grows_at_its_end(log: EventLog, workspace: Path) -> None:
    """Every request begins with the messages of the one before, but for the tail that speaks of the newest state."""
    server, _, _ = go(
        log,
        workspace,
        *[Reply(f"look {n}", [ToolCall("search", {"pattern": f"x{n}"})]) for n in range(4)],
        Reply("Done."),
    )
    for earlier, later in pairwise(server.requests):
        kept = earlier["messages"][:-1]  # the reminder
        assert later["messages"][: len(kept)] == kept
        assert later["tools"] == earlier["tools"]


def test_the_cap_on_turns_and_going_on(log: EventLog, workspace: Path) -> None:
    script = [*[Reply("", [ToolCall("search", {"pattern": f"{n}"})]) for n in range(3)], Reply("Done.")]
    with scripted_server(*script, in_order=True) as server:
        assert run_task(log, workspace, server.url, max_turns=2) == TURNS
        assert len(server.bodies) == 2
        assert asyncio.run(run_session(log, workspace, server.url, max_turns=2)) == TURNS
        assert len(server.bodies) == 2
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        assert len(server.bodies) == 4, "what has ended asks nothing"


def test_a_long_run_stays_within_its_window(log: EventLog, workspace: Path) -> None:
    """Far more is read than fits: the prompt never passes the budget, and the rule and the task stay."""
    budget = 6000
    for n in range(12):
        (workspace / f"f{n}.txt").write_text(f"file {n}\n" + f"line of file {n}\n" * 300)
    script = [
        *[Reply(f"Now {n}.", [ToolCall("read", {"path": f"f{n}.txt"})]) for n in range(12)],
        Reply("Done."),
    ]
    seen = Seen()
    with scripted_server(*script, in_order=True) as server:
        begin(
            log,
            settings_for(workspace, server.url, budget=budget),
            "Read them all.",
            constraints=["Never lie."],
        )
        assert asyncio.run(run_session(log, workspace, server.url, seen=seen)) == ANSWERED
    assert len(seen.staged) == 13
    assert max(seen.staged) <= budget
    assert any(note.startswith("compaction:") for note in seen.notes)
    for request in server.requests:
        text = json.dumps(request["messages"])
        assert "Read them all." in text
        assert "Never lie." in text
        calls = [call["id"] for m in request["messages"] for call in m.get("tool_calls") or ()]
        assert calls == [m["tool_call_id"] for m in request["messages"] if m["role"] == "tool"]


def test_replies_that_are_too_long(log: EventLog, workspace: Path) -> None:
    cut = Reply("", [ToolCall("write", '{"path": "n", "content": "abc')], finish="length")
    server, seen, end = go(log, workspace, cut, Reply("An answer that", finish="length"))
    assert "is no JSON" in result_of(server, "c0-0")
    assert any("cut off at its limit of tokens" in str(m["content"]) for m in said_to(server))
    assert not (workspace / "n").exists()
    assert end == ANSWERED
    assert "the answer was cut off at --max-tokens" in seen.notes


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path: Path, workspace: Path) -> None:
    """Before anything is done that could not be recorded."""

    class Full(EventLog):
        def extend(self, new: Sequence[NewEvent]) -> list[Event]:
            if any((event.data or {}).get("part") == "call_started" for event in new):
                raise sqlite3.OperationalError("database or disk is full")
            return super().extend(new)

    with Full.open(tmp_path / "full.db") as log, pytest.raises(sqlite3.OperationalError, match="full"):
        go(log, workspace, Reply("", [ToolCall("run", {"command": "touch done"})]), Reply("Done."))
    assert not (workspace / "done").exists()
