"""A log of turns for the tests of layouts."""

import json
import random
from collections.abc import Callable

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.working_set import Context

Assemble = Callable[..., Context]
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{i}", "parameters": {"b": 1, "a": 2}}} for i in range(5)
]


def start(log: EventLog) -> None:
    record.policy(log, "You are careful.")
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, TOOLS)
    record.user(log, "Fix the test.")


def turn(log: EventLog, i: int, words: int = 12, exit_code: int = 0) -> None:
    call = {
        "id": f"c{i}",
        "type": "function",
        "function": {"name": "tool_1", "arguments": json.dumps({"n": i})},
    }
    record.assistant(log, f"Turn {i}.", tool_calls=[call])
    text = " ".join(random.Random(i).choice(["alpha", "beta", "gamma", "delta"]) for _ in range(words))
    record.tool_result(log, f"c{i}", text, name="tool_1", exit_code=exit_code)
