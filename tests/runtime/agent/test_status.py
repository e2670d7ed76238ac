"""A session with a status, a task list and skills."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from deeproot.runtime.agent.session import ANSWERED
from deeproot.runtime.agent.setup import begin
from deeproot.runtime.context.event_log import EventLog

from .killing import DyingLog, Killed
from .runs import clock, result_of, run_session, said_to, settings_for
from .scripted import Reply, ToolCall, scripted_server

SKILL = """---
name: ports
use_when: a port is changed
not_when: a port is only read
counter_examples:
  - which port is it
---
Tell the user the old port too.
"""


def test_status_list_and_skills(log: EventLog, workspace: Path) -> None:
    """Tools that the host answers: each result in its place, a skill's body once, the list and the counts at the end."""
    folder = workspace.parent / "skills" / "ports"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    use = ToolCall("use_skill", {"name": "ports"})
    script = [
        Reply(
            "",
            [
                use,
                use,
                ToolCall("rewrite_todo_list", {"items": ["look", "change"]}),
                ToolCall("read", {"path": "a.py"}),
            ],
        ),
        Reply(
            "",
            [
                ToolCall("update_todo_status", {"number": 1, "status": "done"}),
                ToolCall("use_skill", {"name": "x"}),
            ],
        ),
        Reply("Done."),
    ]
    with scripted_server(*script, in_order=True) as server:
        settings = settings_for(
            workspace, server.url, status=True, time_budget_s=3600.0, skills=str(folder.parent)
        )
        begin(log, settings, "Change the port.")
        assert asyncio.run(run_session(log, workspace, server.url)) == ANSWERED
        again = asyncio.run(run_session(log, workspace, server.url))
        assert (again, len(server.bodies)) == (ANSWERED, 3)
    assert "- ports: " in said_to(server)[0]["content"]
    assert "time budget" in said_to(server)[0]["content"]
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert {"use_skill", "rewrite_todo_list", "update_todo_status", "read"} <= set(names)
    second = said_to(server, 1)
    assert [m["tool_call_id"] for m in second if m["role"] == "tool"] == ["c0-0", "c0-1", "c0-2", "c0-3"]
    assert "stand above already" in result_of(server, "c0-1", 1)
    assert str(second).count("Tell the user the old port too.") == 1
    assert "[call 2 of use_skill]" in result_of(server, "c0-1", 1)
    tail = str(second[-1]["content"])
    assert "<agent_status>" in tail
    for words in ("todo: 0 of 2 done", "read 1", "time budget"):
        assert words in tail
    assert "todo: 1 of 2 done" in str(said_to(server)[-1]["content"])
    assert "there is no skill 'x'; give one of: ports" in result_of(server, "c1-1")


@pytest.mark.parametrize("commit", range(1, 9))
def test_with_a_status_a_run_goes_on_with_the_same_bytes(commit: int, tmp_path: Path) -> None:
    """Killed at any commit, also between the status and the request."""
    bodies = []
    for stop in (0, commit):
        workspace = tmp_path / str(stop) / "workspace"
        workspace.mkdir(parents=True)
        (workspace / "a.py").write_text("x = 1\n")
        script = [
            Reply("", [ToolCall("read", {"path": "a.py"})]),
            Reply("", [ToolCall("read", {"path": "."})]),
            Reply("Done."),
        ]
        with scripted_server(*script) as server:
            with DyingLog.open(tmp_path / f"{stop}.db", clock=clock) as log:
                begin(log, settings_for(workspace, server.url, status=True), "Do it.")
                log.commits, log.at = 0, stop
                with contextlib.suppress(Killed):
                    asyncio.run(run_session(log, workspace, server.url))
            with EventLog.open(tmp_path / f"{stop}.db", clock=clock) as again:
                asyncio.run(run_session(again, workspace, server.url))
            bodies.append(server.bodies[-1])
    assert b"<agent_status>" in bodies[0]
    assert bodies[0] == bodies[1]
