"""A list of what is to be done, which the model keeps itself: its own words, said again at the end of every prompt."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deeproot.runtime.context.calls import arguments_of
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.status.reading import Reading

PART = "todo"
"""Of the events that hold the list."""
STATES = ("pending", "in_progress", "done", "dropped")
REWRITE, UPDATE = "rewrite_todo_list", "update_todo_status"
_MOST = 50
_ITEM = {"type": "string", "maxLength": 200}
LIST_TOOLS: tuple[Mapping[str, Any], ...] = (
    {
        "type": "function",
        "function": {
            "name": REWRITE,
            "description": "Writes the list of what is to be done anew, in order. Use it for tasks of three steps or more.",
            "parameters": {
                "type": "object",
                "properties": {"items": {"type": "array", "items": _ITEM, "maxItems": _MOST}},
                "required": ["items"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": UPDATE,
            "description": "Says how far an item of the list is. Call it when you begin an item and when it is done.",
            "parameters": {
                "type": "object",
                "properties": {
                    "number": {"type": "integer", "minimum": 1, "maximum": _MOST},
                    "status": {"enum": list(STATES)},
                },
                "required": ["number", "status"],
            },
        },
    },
)


@dataclass(frozen=True, slots=True)
class Todo:
    """One item. `status`: one of `STATES`."""

    text: str
    status: str = "pending"


class TodoError(ValueError):
    """A call of the list's tools cannot be done. The message names the argument and says what to give."""


def changed(todo: Sequence[Todo], name: str, arguments: Any) -> tuple[Todo, ...]:
    """The list after a call of one of the tools. Raises `TodoError`."""
    given = arguments if isinstance(arguments, Mapping) else {}
    if name == REWRITE:
        return _rewritten(todo, given.get("items"))
    if name == UPDATE:
        return _updated(todo, given.get("number"), given.get("status"))
    raise TodoError(f"{name} is no tool of the list; call {REWRITE} or {UPDATE}")


def answer(log: EventLog, call_id: str, call: Mapping[str, Any], todo: Sequence[Todo]) -> int:
    """Do a call of the list's tools and append its result, and the list if it changed; the result's event.

    `call`: `{"name", "arguments"}`. `todo`: the list so far (`RunHistory.todo`).
    """
    return log.extend(answer_events(call_id, call, todo))[0].seq


def answer_events(call_id: str, call: Mapping[str, Any], todo: Sequence[Todo]) -> list[NewEvent]:
    """What `answer` appends."""
    name = str(call.get("name", ""))
    told = {"role": "tool", "message": {"name": name}}
    try:
        new = changed(todo, name, arguments_of(call))
    except TodoError as error:
        return [NewEvent(EventKind.TOOL_RESULT, f"error: {error}", told, call_id, 1)]
    listed = json.dumps([[item.text, item.status] for item in new], ensure_ascii=False)
    said = ", ".join(f"{i} {item.status}" for i, item in enumerate(new, 1)) or "empty"
    result = NewEvent(EventKind.TOOL_RESULT, f"The list is now: {said}.", told, call_id, 0)
    return [result, NewEvent(EventKind.STATE_CHANGE, listed, {"part": PART})]


def read_todo(payload: str) -> tuple[Todo, ...]:
    """The list of an event's payload."""
    return tuple(Todo(text, status) for text, status in json.loads(payload))


def readings(todo: Sequence[Todo]) -> list[Reading]:
    """The list for the status: a count, then an item a line."""
    if not todo:
        return []
    done = sum(item.status in ("done", "dropped") for item in todo)
    lines = [Reading("todo", f"{done} of {len(todo)} done")]
    return lines + [Reading(f"todo {i}", f"{item.status}, {item.text}") for i, item in enumerate(todo, 1)]


def _rewritten(todo: Sequence[Todo], items: Any) -> tuple[Todo, ...]:
    if not isinstance(items, list) or not all(isinstance(text, str) and text.strip() for text in items):
        raise TodoError(
            "items is no list of texts; give one text an item, in the order in which you will do them"
        )
    if len(items) > _MOST:
        raise TodoError(f"items has {len(items)} entries; give at most {_MOST}")
    known = {item.text: item.status for item in todo}
    return tuple(Todo(text, known.get(text, "pending")) for text in items)


def _updated(todo: Sequence[Todo], number: Any, status: Any) -> tuple[Todo, ...]:
    if not todo:
        raise TodoError(f"there is no list yet; call {REWRITE} first")
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= len(todo):
        raise TodoError(f"number is {number!r}; give 1 to {len(todo)}")
    if status not in STATES:
        raise TodoError(f"status is {status!r}; give one of {', '.join(STATES)}")
    return tuple(replace(item, status=status) if i == number else item for i, item in enumerate(todo, 1))
