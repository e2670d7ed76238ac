"""What a conversation must look like before it reaches a template."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.chat.errors import TemplateError

Message = dict[str, Any]
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""What clients and templates call the reasoning of a reply."""


def checked_messages(messages: Sequence[Mapping[str, Any]], *, other_roles: frozenset[str]) -> list[Message]:
    """The messages with one shape: content a string or a list of text parts, tool calls well-formed.

    Absent or null content is an empty string, other null fields go, older names of `reasoning_content` are
    understood. Tool-call arguments stay as they came. `other_roles`: roles allowed beside the usual ones.
    TemplateError names the message and the field of anything else.
    """
    if not messages:
        raise TemplateError("at least one message is needed", field="messages")
    return [_checked(message, i, other_roles) for i, message in enumerate(messages)]


def _checked(message: Mapping[str, Any], index: int, other_roles: frozenset[str]) -> Message:
    if not isinstance(message, Mapping):
        raise TemplateError(f"expected an object, found {type(message).__name__}", message_index=index)
    role = message.get("role")
    if role not in _ROLES and role not in other_roles:
        raise TemplateError(
            f"{role!r} is not one of: {', '.join(sorted(_ROLES))}",
            message_index=index,
            field="role",
        )
    result = {key: value for key, value in message.items() if value is not None}
    result["content"] = _checked_content(message.get("content"), index)
    named = next((name for name in REASONING_NAMES if name in result), None)
    if named is not None:
        if not isinstance(result[named], str):
            raise TemplateError("expected a string", message_index=index, field=named)
        # Most templates read the first name, some another.
        result = {
            **dict.fromkeys(REASONING_NAMES, result[named]),
            **result,
            "reasoning_content": result[named],
        }
    if "tool_calls" in result:
        result["tool_calls"] = _checked_calls(result["tool_calls"], index)
    return result


def _checked_content(content: Any, index: int) -> str | list[Message]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise TemplateError(
            f"expected a string or a list of text parts, found {type(content).__name__}",
            message_index=index,
            field="content",
        )
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise TemplateError(
                f"{kind!r} is not supported; only parts of type 'text' are",
                message_index=index,
                field=f"content[{i}].type",
            )
        if not isinstance(part.get("text"), str):
            raise TemplateError("expected a string", message_index=index, field=f"content[{i}].text")
        parts.append({"type": "text", "text": part["text"]})
    return parts


def _checked_calls(calls: Any, index: int) -> list[Message]:
    if not isinstance(calls, list | tuple):
        raise TemplateError("expected a list", message_index=index, field="tool_calls")
    checked = []
    for i, call in enumerate(calls):
        field = f"tool_calls[{i}].function"
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping):
            raise TemplateError("expected an object", message_index=index, field=field)
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise TemplateError("expected a name", message_index=index, field=f"{field}.name")
        arguments = function.get("arguments")
        arguments = "{}" if arguments is None or arguments == "" else arguments
        if not isinstance(parsed_arguments(arguments, index, i), dict):
            raise TemplateError("expected a JSON object", message_index=index, field=f"{field}.arguments")
        checked.append({**call, "function": {**function, "arguments": arguments}})
    return checked


def parsed_arguments(arguments: Any, index: int, call: int) -> Any:
    """Arguments as an object, also when they came as a string of JSON."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError) as fault:
        raise TemplateError(
            f"not valid JSON ({fault}); send the arguments as the model wrote them",
            message_index=index,
            field=f"tool_calls[{call}].function.arguments",
        ) from fault


def with_parsed_arguments(messages: Sequence[Message]) -> list[Message]:
    """The messages with every tool call's arguments as an object, which is what templates expect."""
    result = []
    for index, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls is None:
            result.append(message)
            continue
        parsed = [
            {
                **c,
                "function": {
                    **c["function"],
                    "arguments": parsed_arguments(c["function"]["arguments"], index, i),
                },
            }
            for i, c in enumerate(calls)
        ]
        result.append({**message, "tool_calls": parsed})
    return result


def with_joined_content(messages: Sequence[Message]) -> list[Message]:
    """The messages with lists of text parts joined by a line break, for templates that expect strings."""
    return [{**message, "content": text_of_content(message["content"])} for message in messages]


def text_of_content(content: str | list[Message]) -> str:
    """Checked content as one string."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
