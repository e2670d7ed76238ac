"""An agent's turns in miniature, and what its calls repeat of each other."""

import json
from collections.abc import Sequence
from typing import Any

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.lint_log import LintResult, lint_requests
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.request_log import read_requests
from deeproot.runtime.context.working_set import GENERATION_PROMPT, Context

TAIL = ("status", "status_again", "reminder", GENERATION_PROMPT)
"""What each call has at its end and the next has anew."""
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("bash", "phone_call", "read_file")
]


def begin(log: EventLog, task: str = "Make the tests pass.") -> None:
    record.policy(log, "You are careful.")
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, TOOLS)
    record.user(log, task)


def call(
    log: EventLog,
    name: str,
    arguments: dict[str, Any],
    output: str,
    *,
    exit_code: int = 0,
    seconds: float | None = None,
    reasoning: str = "",
    said: str = "I look.",
) -> int:
    """One message of the model with one call, and its result; the result's event."""
    call_id = f"c{len(log)}"
    function = {"name": name, "arguments": json.dumps(arguments)}
    made = {"id": call_id, "type": "function", "function": function}
    record.assistant(log, said, tool_calls=[made], reasoning=reasoning)
    return record.tool_result(log, call_id, output, name=name, exit_code=exit_code, seconds=seconds)


def stable(context: Context, tail: Sequence[str] = TAIL) -> int:
    """Tokens of a call before the first that the next call has anew."""
    return min(b.start for b in context.boundaries if b.key in tail)


def extends(earlier: Context, later: Context, tail: Sequence[str] = TAIL) -> bool:
    """Whether a call begins with all of an earlier one but that one's tail, token for token."""
    return common_prefix(earlier.token_ids, later.token_ids) >= stable(earlier, tail)


def linted(contexts: Sequence[Context]) -> LintResult:
    """What `deeproot lint` says of these calls."""
    lines = [json.dumps(context.request(model="m")) for context in contexts]
    return lint_requests(read_requests(lines), len)


def text_of(context: Context) -> str:
    """All contents of a call."""
    return "\n".join(str(message["content"]) for message in context.messages)


def whole_exchanges(context: Context) -> bool:
    """Every tool message follows the message that made its call, and every call has its result."""
    open_calls: set[str] = set()
    for message in context.messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return False
        open_calls |= {call["id"] for call in message.get("tool_calls") or ()}
    return not open_calls
