"""Deferred tools: only their names are in the root; a tool's schema is appended once, where it was found, and stays.

A tool that is logged with `defer_loading: true` is deferred. The search is that of the server (`chat.tool_search`), which
does the same for clients that send such tools to it; here the host answers, so any server will do.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.chat.tool_search import NAME, ToolShelf, query_in, result_text, shelf_of
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind

PART = "schemas"
"""Of the results that hold schemas."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """Of one log. `shelf`: None if no tool is deferred; `loaded`: tools that were found, which
    the model may call, and the events that show them."""

    shelf: ToolShelf | None
    loaded: Mapping[str, int]


def read_deferred(log: EventLog) -> Deferred:
    """The deferred tools of a log, as it now is."""
    tools: list[Any] = []
    loaded: dict[str, int] = {}
    for event in log.read():
        if event.kind is EventKind.INSTRUCTION and event.data.get("part") == "tools":
            tools = json.loads(log.payload(event))
        elif event.kind is EventKind.TOOL_RESULT and event.data.get("part") == PART:
            loaded.update({str(name): event.seq for name in event.data.get("names", ())})
    return Deferred(shelf_of(tools), loaded)


def answer(log: EventLog, call_id: str, call: Mapping[str, Any]) -> int:
    """Answer a call of `tool_search`: schemas that are not in the conversation yet, and which are; the result's event.

    `call`: `{"name", "arguments"}`.
    """
    known = read_deferred(log)
    arguments = call.get("arguments", "")
    query = query_in(arguments if isinstance(arguments, str) else json.dumps(arguments))
    told: dict[str, Any] = {"role": "tool", "message": {"name": NAME}}
    if known.shelf is None or not query:
        words = (
            "query is missing; give a few words on what the tool should do"
            if known.shelf
            else "no tool is deferred"
        )
        return log.extend([NewEvent(EventKind.TOOL_RESULT, f"error: {words}", told, call_id, 1)])[0].seq
    found = known.shelf.search(query)
    names = [str(tool["function"]["name"]) for tool in found]
    new = [tool for tool in found if tool["function"]["name"] not in known.loaded]
    lines = [result_text(new)] if new or not found else []
    lines += [
        f"{name} can be called: its schema is in event {known.loaded[name]}."
        for name in names
        if name in known.loaded
    ]
    if new:
        told |= {"part": PART, "names": [tool["function"]["name"] for tool in new], "anchor": True}
    return log.extend([NewEvent(EventKind.TOOL_RESULT, "\n".join(lines), told, call_id, 0)])[0].seq
