"""A well-kept log of requests, and a way to break it."""

import copy
from typing import Any

TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"a": 1, "b": 2}}} for n in ("one", "two")
]
CHAT = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "gone"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "one", "arguments": '{"a": 1, "b": 2}'}}


def requests(turns: int = 4) -> list[dict[str, Any]]:
    """A well-kept session: each call extends the one before."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are careful. " * 20},
        {"role": "user", "content": "Fix it."},
    ]
    made = []
    for i in range(turns):
        made.append({"model": "m", "messages": copy.deepcopy(messages), "tools": copy.deepcopy(TOOLS)})
        messages.append(
            {
                "role": "assistant",
                "content": f"Step {i}",
                "tool_calls": [CALL],
                "reasoning_content": "thinking " * 5,
            }
        )
        messages.append({"role": "tool", "tool_call_id": "c1", "content": f"output {i} " * 10})
    return made


def add_timestamp(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] = f"It is 2025-01-31 10:00:0{i}. " + body["messages"][0]["content"]


def turn_tools_round(body: dict[str, Any], i: int) -> None:
    body["tools"] = body["tools"][:: -1 if i % 2 else 1]
