"""From the items of a conversation to chat messages.

A reply is several items: reasoning, a message, calls. They make one assistant message, as the model wrote them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.responses_api.schemas import (
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    Part,
    ReasoningItem,
)
from deeproot.runtime.server.schemas import RequestModel

Message = dict[str, Any]
Item = Mapping[str, Any]
Known = TypeVar("Known", bound=RequestModel)

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"})


def messages_of(items: Sequence[tuple[str, Item]]) -> tuple[list[Message], list[str]]:
    """The chat messages of items, and for each the field that it came from first.

    `items`: field names and items in order. Raises ApiError (400) that names the field of what cannot be served.
    """
    messages: list[Message] = []
    origins: list[str] = []
    for where, item in items:
        made = _message(item, where)
        if made["role"] == "assistant" and messages and messages[-1]["role"] == "assistant":
            _join(messages[-1], made)
            continue
        messages.append(made)
        origins.append(where)
    return messages, origins


def _join(message: Message, more: Message) -> None:
    """Add what a further item says to an assistant message."""
    message["content"] += more["content"]
    for name in ("reasoning_content", "tool_calls"):
        if name in more:
            message[name] = message[name] + more[name] if name in message else more[name]


def _message(item: Item, where: str) -> Message:
    match item.get("type") or "message":
        case "message":
            turn = _as(MessageItem, item, where)
            return {"role": turn.role, "content": _text(turn.content, f"{where}.content")}
        case "function_call":
            call = _as(FunctionCallItem, item, where)
            function = {"name": call.name, "arguments": call.arguments}
            calls = [{"id": call.call_id, "type": "function", "function": function}]
            return {"role": "assistant", "content": "", "tool_calls": calls}
        case "function_call_output":
            output = _as(FunctionOutputItem, item, where)
            content = _text(output.output, f"{where}.output")
            return {"role": "tool", "tool_call_id": output.call_id, "content": content}
        case "reasoning":
            reasoning = _as(ReasoningItem, item, where)
            message: Message = {"role": "assistant", "content": ""}
            if reasoning.content:
                message["reasoning_content"] = _text(reasoning.content, f"{where}.content")
            return message
        case kind:
            raise invalid(
                f"An item of type {kind!r} is not supported: this server takes message, function_call, "
                "function_call_output and reasoning.",
                f"{where}.type",
                "unsupported",
            )


def _text(content: str | Sequence[Part], where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if part.type not in _TEXT_PARTS:
            raise invalid(
                f"A part of type {part.type!r} is not supported; only text is.",
                f"{where}[{i}].type",
                "unsupported",
            )
        text = part.text if part.type != "refusal" else (part.model_extra or {}).get("refusal")
        if not isinstance(text, str):
            raise invalid("Expected a string.", f"{where}[{i}].text", "invalid_value")
        texts.append(text)
    return "".join(texts)


def _as(model: type[Known], item: Item, where: str) -> Known:
    try:
        return model.model_validate(dict(item))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = f"{where}.{first['loc'][0]}" if first["loc"] else where
        raise invalid(f"{name}: {first['msg']}.", name, "invalid_value") from None
