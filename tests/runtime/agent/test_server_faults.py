"""A model's server that is busy, fails, stays away or drops its reply."""

import asyncio
from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.agent.stream import ModelError
from deeproot.runtime.context.event_log import EventLog

from .runs import go, run_session, said_to
from .scripted import Entry, Refusal, Reply, ToolCall, scripted_server


def test_a_server_that_is_busy_or_fails_is_asked_again(log: EventLog, workspace: Path) -> None:
    first: Entry = [
        Refusal(503, "loading"),
        Reply("half", drop_after=0),
        Reply("", [ToolCall("read", {"path": "a.py"})]),
    ]
    server, seen, end = go(log, workspace, first, Reply("Done."))
    assert end == ANSWERED
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    assert "the server answered 503: loading; asking again in 0 s" in seen.notes
    assert any(note.startswith(("the stream ended before", "the connection failed")) for note in seen.notes)


def test_a_server_that_stays_away(log: EventLog, workspace: Path) -> None:
    with pytest.raises(ModelError, match="no reply after 3 tries: the server answered 503"):
        go(log, workspace, Refusal(503))
    with (
        pytest.raises(ModelError, match="400: your prompt is too long"),
        scripted_server(Refusal(400, "your prompt is too long")) as server,
    ):
        asyncio.run(run_session(log, workspace, server.url))
    with scripted_server(Reply("Done.")) as server:
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED


def test_a_dropped_reply_whose_calls_only_read_is_asked_for_anew(log: EventLog, workspace: Path) -> None:
    read = ToolCall("read", {"path": "a.py"})
    server, _, _ = go(
        log, workspace, [Reply("", [read, read], drop_after=1), Reply("", [read])], Reply("Done.")
    )
    assert server.bodies[0] == server.bodies[1]
    assert len([m for m in said_to(server) if m["role"] == "tool"]) == 1


def test_a_dropped_reply_that_wrote_stands(log: EventLog, workspace: Path) -> None:
    calls = [ToolCall("run", {"command": "echo x >> n"}), ToolCall("run", {"command": "echo y >> n"})]
    server, _, _ = go(log, workspace, Reply("I write.", calls, drop_after=1), Reply("Done."))
    assert (workspace / "n").read_text() == "x\n", "once, and the call that never came was not made"
    assert said_to(server)[2]["content"] == "I write."
    assert [call["id"] for call in said_to(server)[2]["tool_calls"]] == ["c0-0"]
    assert any("your reply was cut off behind the last call" in str(m["content"]) for m in said_to(server))


def test_a_server_that_does_not_say_what_it_cached(log: EventLog, workspace: Path) -> None:
    """It is not taken for one that has cached nothing."""
    go(log, workspace, Reply("", [ToolCall("read", {"path": "a.py"})], cached=False), Reply("Done."))
    first, second = (event.data for event in log.read() if event.data.get("part") == "usage")
    assert "cached_tokens" not in first
    assert second["cached_tokens"] > 0
