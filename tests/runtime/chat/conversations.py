"""Conversations in the OpenAI form, and tools."""

from typing import Any

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city & its surroundings — today's <b>only</b>",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Zürich", "東京"]},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
}
TIME: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "Time",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = [WEATHER, TIME]


def call(name: str, arguments: Any, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


_ASK = {"role": "user", "content": "What's the weather in Zürich?"}
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        call("get_weather", '{"city": "Zürich", "days": 3, "x": [1.5, null, {"a": "\\n\\""}]}', "abcdefgh1")
    ],
}
_RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "content": '{"temp": 21, "sky": "clear"}'}

PLAIN: dict[str, list[dict[str, Any]]] = {
    "one turn": [{"role": "user", "content": "Hello!"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
    "turns": [
        {"role": "user", "content": "  Hello\n\n"},
        {"role": "assistant", "content": "\n Hi 😀 there  "},
        {"role": "user", "content": "def f(x):\n    return {x: 12 + 34}\n\t# <b>é</b> {{ y }} {% z %}"},
    ],
    "ends with assistant": [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi."}],
    "reasoning in content": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nfirst"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "<think>\nhm hm\n</think>\n\nsecond"},
    ],
    "reasoning apart": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "first", "reasoning_content": "hm"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "second", "reasoning_content": "hm hm"},
    ],
    "empty": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": " "},
    ],
}
WITH_CALLS: dict[str, list[dict[str, Any]]] = {
    "open call": [_ASK, _CALL, _RESULT],
    "whole loop": [
        {"role": "system", "content": "Be brief."},
        _ASK,
        _CALL,
        _RESULT,
        {"role": "assistant", "content": "Clear, 21 degrees."},
        {"role": "user", "content": "Thanks"},
    ],
    "parallel": [
        _ASK,
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                call("get_weather", '{"city":"東京"}', "abcdefgh1"),
                call("get_time", "{}", "abcdefgh2"),
            ],
        },
        _RESULT,
        {"role": "tool", "tool_call_id": "abcdefgh2", "content": "12:00"},
    ],
}
