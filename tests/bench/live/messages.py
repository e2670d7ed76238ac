"""A conversation with a call, for whatever asks a server."""

from typing import Any

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in a?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"f":"a"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "name": "read", "content": "forty two"},
    {"role": "user", "content": "Well?"},
    {"role": "assistant", "content": "It says forty two."},
]
