"""A session over a workspace, with a clock that stands still, so that equal runs send equal bytes; and what was said in it."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from deeproot.runtime.agent.jail import Jail
from deeproot.runtime.agent.outcome import Outcome
from deeproot.runtime.agent.setup import Settings, begin, build
from deeproot.runtime.agent.shell import Limits, Shell, probe
from deeproot.runtime.agent.stream import Call, Server, Text, Usage
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.working_set import Context

from .scripted import Entry, ScriptedServer, scripted_server

NOW_NS = 1_760_000_000_000_000_000


@cache
def confinement() -> frozenset[str]:
    """What can confine commands here."""
    with ThreadPoolExecutor(1) as pool:  # not in the caller's event loop
        return pool.submit(lambda: asyncio.run(probe())[0]).result()


def clock() -> int:
    return NOW_NS


@dataclass
class Seen:
    """A watcher that remembers."""

    notes: list[str] = field(default_factory=list)
    ended: list[tuple[str, Outcome]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    staged: list[int] = field(default_factory=list)

    def asked(self, turn: int, context: Context) -> None:
        self.order.append("asked")
        self.staged.append(int(context.token_ids.size))

    def said(self, piece: Text) -> None: ...

    def replied(self, usage: Usage | None, ttft_s: float | None) -> None:
        self.order.append("replied")

    def call_started(self, call: Call) -> None:
        self.order.append(f"+{call.id}")

    def call_ended(self, call: Call, outcome: Outcome) -> None:
        self.order.append(f"-{call.id}")
        self.ended.append((call.id, outcome))

    def noted(self, text: str) -> None:
        self.notes.append(text)


def settings_for(workspace: Path, url: str, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "workspace": str(workspace.resolve()),
        "model": "scripted",
        "base_url": url,
        "request": {"max_tokens": 500},
        "budget": 24_000,
        **changes,
    }
    return Settings(**values)


async def run_session(
    log: EventLog,
    workspace: Path,
    url: str,
    *,
    seen: Seen | None = None,
    max_turns: int = 50,
    limits: Limits | None = None,
    waits_s: Sequence[float] = (0.0, 0.0),
) -> str:
    """Go on with a log's run to its end."""
    with ExitStack() as stack:
        jail = Jail(workspace)
        stack.callback(jail.close)
        shell = Shell(jail.root, confinement(), limits=limits)
        stack.callback(shell.close)
        server = Server(url)
        try:
            session = build(
                log,
                Settings.of(log),
                jail=jail,
                shell=shell,
                server=server,
                watcher=seen or Seen(),
                max_turns=max_turns,
                waits_s=waits_s,
            )
            return await session.run()
        finally:
            await server.close()


def run_task(
    log: EventLog,
    workspace: Path,
    url: str,
    task: str = "Do it.",
    *,
    seen: Seen | None = None,
    **options: Any,
) -> str:
    """Begin a run and go to its end."""
    begin(log, settings_for(workspace, url), task, constraints=["Never edit vendor/."])
    return asyncio.run(run_session(log, workspace, url, seen=seen, **options))


def said_to(server: ScriptedServer, request: int = -1) -> list[dict[str, Any]]:
    """The messages of one of its requests."""
    messages: list[dict[str, Any]] = server.requests[request]["messages"]
    return messages


def result_of(server: ScriptedServer, call_id: str, request: int = -1) -> str:
    """What the model was told of a call."""
    (found,) = [m["content"] for m in said_to(server, request) if m.get("tool_call_id") == call_id]
    return str(found)


def go(log: EventLog, workspace: Path, *script: Entry, **options: Any) -> tuple[ScriptedServer, Seen, str]:
    """A run with that script: what was asked of its server, what its watcher saw, and how it ended."""
    seen = Seen()
    with scripted_server(*script, in_order=True) as server:
        end = run_task(log, workspace, server.url, seen=seen, **options)
    return server, seen, end
