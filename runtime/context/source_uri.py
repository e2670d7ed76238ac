"""Names of where an event's words come from."""

from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.events import Event, EventKind


def source_uri(event: Event, call: Mapping[str, Any] | None = None) -> str:
    """Where an event's words come from, as the host says or as follows from the call."""
    if isinstance(event.data.get("uri"), str):
        return str(event.data["uri"])
    match event.kind:
        case EventKind.INSTRUCTION:
            return f"instruction://{event.data.get('role', 'supervisor')}"
        case EventKind.ASSISTANT:
            return "model://assistant"
        case EventKind.TOOL_RESULT:
            name = event.data.get("message", {}).get("name") or (call or {}).get("name") or "unknown"
            return f"tool://{name}/{event.call_id or event.seq}"
        case EventKind.STATE_CHANGE:
            return f"state://{event.data.get('name', '')}"
        case _:
            return f"event://{event.seq}"
