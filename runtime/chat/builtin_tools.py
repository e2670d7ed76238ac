"""Tools for models whose chat template knows none.

The tools are described in the system turn, calls and results are plain text in the assistant's and the user's turns,
in the form that Hermes models are trained on: `formats.json_calls.HERMES` reads what comes back.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.chat.messages import Message, text_of_content

CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
RESPONSE_OPEN, RESPONSE_CLOSE = "<tool_response>", "</tool_response>"
LITERALS = "<tools></tools>" + CALL_OPEN + CALL_CLOSE + RESPONSE_OPEN + RESPONSE_CLOSE
"""Every mark that this wrapper writes itself."""

_INTRODUCTION = """\
# Tools

These functions are at your disposal, one JSON description a line:
<tools>
"""
_INSTRUCTION = """
</tools>

To use one, answer with its name and its arguments as a JSON object between <tool_call> tags, like this:
<tool_call>
{"name": "function_name", "arguments": {"parameter": "value"}}
</tool_call>
Several calls may follow one another. The results come back between <tool_response> tags. \
If no function is needed, just answer."""


def wrap(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Checked messages with the tools, calls and results written into plain system, user and assistant turns.

    The same input gives the same bytes: tools keep their order, keys inside them are sorted. Arguments that are a
    string of JSON are repeated as they are. Neighbouring results share one user turn.
    """
    wrapped: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            response = f"{RESPONSE_OPEN}\n{text_of_content(message['content'])}\n{RESPONSE_CLOSE}"
            if wrapped and wrapped[-1].get("_results"):
                wrapped[-1]["content"] += "\n" + response
            else:
                wrapped.append({"role": "user", "content": response, "_results": True})
        elif message.get("tool_calls"):
            wrapped.append(_with_calls(message))
        else:
            wrapped.append(dict(message))
    for message in wrapped:
        message.pop("_results", None)
    return _with_description(wrapped, tools) if tools else wrapped


def _with_calls(message: Message) -> Message:
    parts = [text_of_content(message["content"])] if message["content"] else []
    for call in message["tool_calls"]:
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        name = json.dumps(function["name"], ensure_ascii=False)
        parts.append(f'{CALL_OPEN}\n{{"name": {name}, "arguments": {arguments}}}\n{CALL_CLOSE}')
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(parts)}


def _with_description(messages: list[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    lines = [json.dumps(tool, ensure_ascii=False, sort_keys=True) for tool in tools]
    text = _INTRODUCTION + "\n".join(lines) + _INSTRUCTION
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    own = text_of_content(first["content"])
    return [{**first, "content": f"{own}\n\n{text}" if own else text}, *messages[1:]]
