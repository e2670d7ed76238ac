"""A scripted run that can be killed anywhere, what it would have sent, and what it has to send when it goes on."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from deeproot.runtime.agent.setup import begin
from deeproot.runtime.agent.supervisor import UNKNOWN
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event

from .runs import clock, run_session, settings_for
from .scripted import Reply, ScriptedServer, ToolCall, scripted_server

RUN = "echo x >> ran.txt; cat a.py"
SCRIPT = [
    Reply(
        "Let me look.",
        [
            ToolCall("read", {"path": "a.py"}),
            ToolCall("read", {"path": "b.txt"}),
            ToolCall("read", {"path": "."}),
        ],
    ),
    Reply(
        "Now I change it.",
        [
            ToolCall("write", {"path": "new/n.txt", "content": "fresh\n"}),
            ToolCall("patch", {"path": "a.py", "old": "PORT = 1", "new": "PORT = 2"}),
            ToolCall("read", {"path": "a.py"}),
        ],
        reasoning="two files",
    ),
    Reply("", [ToolCall("run", {"command": RUN})]),
    Reply(
        "All at once.",
        [
            ToolCall("read", {"path": "b.txt"}),
            ToolCall("write", {"path": "b.txt", "content": "beta two\n"}),
            ToolCall("patch", {"path": "a.py", "old": "nowhere", "new": "x"}),
        ],
    ),
    Reply("", [ToolCall("read", {"path": "b.txt"}), ToolCall("read", {"path": "b.txt"})]),
    Reply("Done."),
]


class Killed(BaseException):
    """The process ended here."""


class DyingLog(EventLog):
    """Ends the process at its commit number `at`: before it, so that what it would say has happened and is not
    recorded, or after."""

    at = 0
    before = False
    commits = 0

    def extend(self, new: Sequence[NewEvent]) -> list[Event]:
        self.commits += 1
        if self.at and (self.commits > self.at or (self.commits == self.at and self.before)):
            raise Killed
        made = super().extend(new)
        if self.commits == self.at:
            raise Killed
        return made


def make_workspace(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.py").write_text("PORT = 1\n")
    (folder / "b.txt").write_text("beta one\n")
    return folder


def begin_run(log: EventLog, workspace: Path, url: str) -> None:
    begin(log, settings_for(workspace, url), "Do it.", constraints=["Never edit vendor/."])


@dataclass(frozen=True)
class Whole:
    """A run that nobody stopped: its requests, how many commits it made, and the files that it left."""

    bodies: list[bytes]
    commits: int
    files: dict[str, str]


def uninterrupted(folder: Path, script: Sequence[Reply] = SCRIPT) -> Whole:
    workspace = make_workspace(folder / "workspace")
    with scripted_server(*script) as server, DyingLog.open(folder / "run.db", clock=clock) as log:
        begin_run(log, workspace, server.url)
        log.commits = 0
        asyncio.run(run_session(log, workspace, server.url))
        return Whole(list(server.bodies), log.commits, files_of(workspace))


def files_of(workspace: Path) -> dict[str, str]:
    """What is in each file."""
    files = (path for path in workspace.rglob("*") if path.is_file())
    return {str(path.relative_to(workspace)): path.read_text() for path in files}


def killed_at(
    folder: Path,
    server: ScriptedServer,
    commit: int,
    *,
    before: bool = False,
    torn: random.Random | None = None,
) -> Path:
    """The log of a run that ended at that commit of the loop; its workspace stands beside it.

    `torn`: the last record is on disk only in part, or with a wrong byte, as that says.
    """
    workspace = make_workspace(folder / "workspace")
    path = folder / "run.db"
    left: dict[Path, bytes] = {}
    with DyingLog.open(path, clock=clock) as log:
        begin_run(log, workspace, server.url)
        log.commits, log.at, log.before = 0, commit, before
        with pytest.raises(Killed):
            asyncio.run(run_session(log, workspace, server.url))
        if torn is not None:
            left = {file: file.read_bytes() for file in (path, Path(f"{path}-wal"))}
    for file, data in left.items():
        file.write_bytes(data if file == path else _torn(data, torn or random.Random()))
    return path


def _torn(wal: bytes, chosen: random.Random) -> bytes:
    """A write-ahead log whose last frame is damaged."""
    frame = 24 + int.from_bytes(wal[8:12], "big")
    at = chosen.randrange(1, frame)
    if chosen.random() < 0.5:
        return wal[:-at]
    return wal[:-at] + bytes([wal[-at] ^ 0xFF]) + wal[len(wal) - at + 1 :]


def resumed(path: Path, server: ScriptedServer) -> list[bytes]:
    """Every request of the run when it goes on, to its end."""
    server.bodies.clear()
    with EventLog.open(path, clock=clock) as log:
        assert asyncio.run(run_session(log, path.parent / "workspace", server.url)) == "answered"
    return list(server.bodies)


def in_flight(path: Path) -> tuple[list[str], int | None]:
    """Of a log that ends somewhere: commands that were begun and not ended, and, if the reply that made calls was never
    logged, how many of its calls were known."""
    started: dict[str, Event] = {}
    ended: set[str] = set()
    turns = 0
    with EventLog.open(path) as log:
        for event in log.read():
            turns += event.kind.value == "assistant"
            if event.data.get("part") == "call_started":
                started[str(event.call_id)] = event
            elif event.data.get("part") == "call_ended":
                ended.add(str(event.call_id))
    cut = [e for e in started.values() if e.data["turn"] == turns + 1]
    commands = [
        call_id for call_id, e in started.items() if e.data["change"] is None and call_id not in ended
    ]
    return commands, len(cut[-1].data["message"]["calls"]) if cut else None


def with_unknown(body: bytes, call_ids: Sequence[str]) -> dict[str, Any]:
    """A request in which the results of those calls say that nobody knows."""
    request: dict[str, Any] = json.loads(body)
    for message in request["messages"]:
        if message.get("tool_call_id") in call_ids:
            event = message["content"].split('event="')[1].split('"')[0]
            head = message["content"].split(' blake3="')[0]
            digest = blake3(UNKNOWN.encode()).hexdigest()[:16]
            message["content"] = (
                f'{head} blake3="{digest}" trust="untrusted" event="{event}">\n{UNKNOWN}\n</observation>'
            )
    return request


def script_cut(turn: int, calls: int) -> list[Reply]:
    """The script, with the connection closed in that turn's reply behind so many calls."""
    return [replace(reply, drop_after=calls) if i == turn else reply for i, reply in enumerate(SCRIPT)]
