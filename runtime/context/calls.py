"""The tool calls that an assistant's message makes, whatever form it was logged in."""

import json
from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.canonical import CanonicalError, canonical_json
from deeproot.runtime.context.control_text import well_formed
from deeproot.runtime.context.events import Event


def calls_of(event: Event) -> dict[str, Mapping[str, Any]]:
    """Call id -> `{"name", "arguments"}` of an assistant's message, in its order; calls without an id are left out.

    A step of SWE-agent without tool calls is one call of `shell` with the step's action as its arguments.
    """
    made: dict[str, Mapping[str, Any]] = {}
    calls = event.data.get("message", {}).get("tool_calls") or []
    for call in calls:
        if isinstance(call, Mapping) and isinstance(call.get("id"), str):
            made[call["id"]] = call.get("function") or {}
    if not calls and event.call_id is not None:
        made[event.call_id] = {"name": "shell", "arguments": event.data.get("step", {}).get("action", "")}
    return made


def arguments_of(call: Mapping[str, Any]) -> Any:
    """The arguments as a JSON value; as the text that they are if that is no JSON."""
    arguments = call.get("arguments", "")
    if isinstance(arguments, str):
        try:
            return json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
    return arguments


def spell_call(call: Mapping[str, Any], limit: int) -> str:
    """Name and canonical arguments on one line of at most about `limit` characters, cut with a count of the rest."""
    arguments = arguments_of(call)
    if not isinstance(arguments, str):
        try:
            arguments = canonical_json(arguments)
        except CanonicalError:
            arguments = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    spelled = well_formed(" ".join(f"{call.get('name', '')} {arguments}".split()))
    if len(spelled) <= limit:
        return spelled
    return f"{spelled[:limit]}[{len(spelled) - limit} more characters]"
