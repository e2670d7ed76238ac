"""OpenAI chat messages into the log and back, field by field."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind, decode_exact

_KINDS = {
    "system": EventKind.INSTRUCTION,
    "developer": EventKind.INSTRUCTION,
    "user": EventKind.INSTRUCTION,
    "assistant": EventKind.ASSISTANT,
    "tool": EventKind.TOOL_RESULT,
    "function": EventKind.TOOL_RESULT,
}

_MESSAGES = (EventKind.INSTRUCTION, EventKind.ASSISTANT, EventKind.TOOL_RESULT)


class LogImportError(ValueError):
    """What is imported is not of the form that it claims. The message names the field."""


def import_messages(
    log: EventLog,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    times_ns: Sequence[int] | None = None,
) -> list[Event]:
    """Append a conversation, all of it or nothing. See `message_events`."""
    return log.extend(message_events(messages, tools=tools, times_ns=times_ns))


def message_events(
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    times_ns: Sequence[int] | None = None,
) -> list[NewEvent]:
    """A conversation as events to be appended. `times_ns`: one per message, else the log's clock.

    Raises `LogImportError` naming the message and field that is wrong.
    """
    if times_ns is not None and len(times_ns) != len(messages):
        raise LogImportError(
            f"times_ns has {len(times_ns)} entries for {len(messages)} messages; give one each"
        )
    for i, message in enumerate(messages):
        check_message(message, f"messages[{i}]")
    new = [
        _new_event(m, f"messages[{i}]", None if times_ns is None else times_ns[i])
        for i, m in enumerate(messages)
    ]
    if tools:
        at = 1 if messages and messages[0].get("role") in ("system", "developer") else 0
        first = None if times_ns is None or not times_ns else times_ns[0]
        new.insert(
            at, NewEvent(EventKind.INSTRUCTION, json.dumps(list(tools)), {"part": "tools"}, time_ns=first)
        )
    return new


def export_messages(log: EventLog) -> list[dict[str, Any]]:
    """The conversation in the log as OpenAI messages, raw: what was imported comes back equal."""
    return [
        event_message(event, decode_or_replace(log.payload(event)))
        for event in log.read()
        if event.kind in _MESSAGES and "role" in event.data
    ]


def export_tools(log: EventLog) -> list[dict[str, Any]] | None:
    """The newest tool schemas of the log, or None."""
    found = None
    for event in log.read():
        if event.data.get("part") == "tools":
            found = json.loads(log.payload(event))
    return found


def event_message(event: Event, text: str) -> dict[str, Any]:
    """One event as the message that it was, with `text` as its content."""
    data = event.data
    message: dict[str, Any] = {"role": data["role"]}
    form = data.get("content", "text")
    if form == "parts":
        message["content"] = data["parts"]
    elif form != "absent":
        message["content"] = None if form == "null" else text
    if event.kind is EventKind.TOOL_RESULT and event.call_id is not None:
        message["tool_call_id"] = event.call_id
    message.update(data.get("message", {}))
    return message


def decode_or_replace(payload: bytes) -> str:
    """The text that was imported, exactly; a payload that never was text gets U+FFFD where it is no UTF-8."""
    try:
        return decode_exact(payload)
    except UnicodeDecodeError:
        return payload.decode("utf-8", "replace")


def check_message(message: Any, where: str) -> None:
    """Raise `LogImportError` unless `message` is an object whose tool calls are objects with a function."""
    if not isinstance(message, Mapping):
        raise LogImportError(f"{where} is {type(message).__name__}; give an object")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise LogImportError(f"{where}.tool_calls is {type(calls).__name__}; give a list or null")
    for i, call in enumerate(calls):
        if not isinstance(call, Mapping) or not isinstance(call.get("function", {}), Mapping):
            raise LogImportError(
                f"{where}.tool_calls[{i}].function is missing; give objects in OpenAI's form"
            )


def content_text(content: Any, where: str) -> tuple[str, dict[str, Any]]:
    """A content field's text, and what of it the text does not say. Images leave a marker in the text."""
    if content is None:
        return "", {"content": "null"}
    if isinstance(content, str):
        return content, {}
    if not isinstance(content, Sequence):
        raise LogImportError(
            f"{where}.content is {type(content).__name__}; give a string, null or a list of parts"
        )
    texts = []
    for i, part in enumerate(content):
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise LogImportError(f"{where}.content[{i}].type is missing; each part has a type")
        texts.append(str(part.get("text", "")) if part["type"] == "text" else f"[{part['type']}]")
    return "\n".join(texts), {"content": "parts", "parts": list(content)}


def _new_event(message: Mapping[str, Any], where: str, time_ns: int | None) -> NewEvent:
    role = message.get("role")
    if not isinstance(role, str) or role not in _KINDS:
        raise LogImportError(f"{where}.role is {role!r}; give one of {', '.join(_KINDS)}")
    text, form = (
        content_text(message["content"], where) if "content" in message else ("", {"content": "absent"})
    )
    kind = _KINDS[role]
    call_id = message.get("tool_call_id") if kind is EventKind.TOOL_RESULT else None
    if call_id is not None and not isinstance(call_id, str):
        raise LogImportError(f"{where}.tool_call_id is {type(call_id).__name__}; give a string")
    known = {"role", "content"} | ({"tool_call_id"} if call_id is not None else set())
    rest = {key: value for key, value in message.items() if key not in known}
    data = {"role": role, **form, "message": rest}
    return NewEvent(kind, text, data, call_id, None, time_ns)
