"""Runs of an agent for the tests of compaction, made up call by call."""

import json
import random

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog

WORDS = ["alpha", "beta", "gamma", "delta", "src/main.c", "buffer_size=4096", "build-7", "v1.2.3"]
CONSTRAINTS = ("Never edit vendor/.", "Do not push to main.", "PostgreSQL listens on port 5433, never 5432.")


def start(log: EventLog, task: str = "Fix tests/test_auth.py.") -> None:
    """Policy, constraints, task."""
    record.policy(log, "You are careful.")
    for constraint in CONSTRAINTS:
        record.constraint(log, constraint)
    record.user(log, task)


def shell(log: EventLog, i: int, command: str, output: str, exit_code: int | None = 0, said: str = "") -> int:
    """One turn: a shell command and its output. Returns the result's event."""
    call = {"name": "bash", "arguments": json.dumps({"command": command})}
    record.assistant(
        log,
        said or f"Turn {i}: let me see.",
        tool_calls=[{"id": f"c{i}", "type": "function", "function": call}],
    )
    return record.tool_result(log, f"c{i}", output, name="bash", exit_code=exit_code)


def chatter(i: int, words: int = 60) -> str:
    """Output that says nothing of failures."""
    rng = random.Random(i)
    return (
        "\n".join(" ".join(rng.choice(WORDS) for _ in range(10)) for _ in range(words // 10))
        + f"\nstep-{i}-done"
    )
