"""SWE-agent trajectories (`trajectory`, `history`, `info`) into the log and back."""

import json
from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.openai_messages import (
    LogImportError,
    check_message,
    content_text,
    decode_or_replace,
)

_STEP_FIELDS = ("action", "observation")


def import_trajectory(
    log: EventLog, document: Mapping[str, Any], *, start_ns: int | None = None
) -> list[Event]:
    """Append a trajectory: its instructions, then one assistant message and one observation a step.

    `start_ns`: time of the first event; each step adds its `execution_time`. None: the log's clock for all.
    Raises `LogImportError` naming the field that is wrong.
    """
    steps = document.get("trajectory")
    if not isinstance(steps, list):
        raise LogImportError("trajectory is missing or no list; give a SWE-agent .traj document")
    header = {key: value for key, value in document.items() if key != "trajectory"}
    new = [
        NewEvent(EventKind.STATE_CHANGE, json.dumps(header), {"part": "swe_agent_header"}, time_ns=start_ns)
    ]
    history = document.get("history", [])
    if not isinstance(history, list):
        raise LogImportError(f"history is {type(history).__name__}; give a list")
    for i, message in enumerate(history):
        check_message(message, f"history[{i}]")
    new += _instructions(history, start_ns)
    calls = _tool_calls(history, len(steps))
    now = start_ns
    for i, step in enumerate(steps):
        pair = _step_events(step, i, calls[i], now)
        new += pair
        now = pair[1].time_ns
    return log.extend(new)


def _step_events(step: Any, i: int, calls: list[Any], now: int | None) -> tuple[NewEvent, NewEvent]:
    """The model's message and the observation of one step. Without tool calls, SWE-agent sends it as the user."""
    where = f"trajectory[{i}]"
    if not isinstance(step, Mapping):
        raise LogImportError(f"{where} is {type(step).__name__}; give an object")
    for field in _STEP_FIELDS:
        if not isinstance(step.get(field), str):
            raise LogImportError(f"{where}.{field} is missing or no string")
    call_id = str(calls[0].get("id", f"step_{i}")) if calls else f"step_{i}"
    rest = {key: value for key, value in step.items() if key not in ("observation", "response")}
    message = {"tool_calls": calls} if calls else {}
    text = step.get("response", step.get("thought", ""))
    if not isinstance(text, str):
        raise LogImportError(f"{where}.response is {type(text).__name__}; give a string")
    said = {"role": "assistant", "index": i, "step": rest, "message": message, "response": "response" in step}
    seen = {
        "role": "tool" if calls else "user",
        "index": i,
        "action": step["action"],
        "state": step.get("state"),
    }
    later = None if now is None else now + _nanoseconds(step.get("execution_time"), where)
    return (
        NewEvent(EventKind.ASSISTANT, text, said, call_id, None, now),
        NewEvent(EventKind.TOOL_RESULT, step["observation"], seen, call_id, None, later),
    )


def _nanoseconds(seconds: Any, where: str) -> int:
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        raise LogImportError(f"{where}.execution_time is {seconds!r}; give seconds")
    return int(seconds * 1e9)


def _tool_calls(history: list[Any], steps: int) -> list[list[Any]]:
    """Each step's tool calls in OpenAI's form, where the history has them and tells as many steps."""
    own = [m for m in history if m.get("role") == "assistant" and not m.get("is_demo")]
    if len(own) < steps:
        return [[] for _ in range(steps)]
    return [list(m.get("tool_calls") or []) for m in own[:steps]]


def export_trajectory(log: EventLog) -> dict[str, Any]:
    """A SWE-agent document. A log that came from one gives it back; for others the history is written anew."""
    header: dict[str, Any] | None = None
    history: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    observations: dict[str, str] = {}
    assistants: list[tuple[Event, str]] = []
    for event in log.read():
        text = decode_or_replace(log.payload(event))
        if event.data.get("part") == "swe_agent_header":
            header = json.loads(text)
        elif event.kind is EventKind.ASSISTANT:
            assistants.append((event, text))
            history.append({"role": "assistant", "content": text})
        elif event.kind is EventKind.TOOL_RESULT:
            observations[_key(event)] = text
            history.append({"role": "user", "content": text})
        elif event.kind is EventKind.INSTRUCTION and "role" in event.data:
            history.append({"role": event.data["role"], "content": text})
    for event, text in assistants:
        steps += _steps(event, text, observations)
    if header is None:
        header = {"environment": "deeproot", "history": history, "info": {}}
    return {**header, "trajectory": steps}


def _steps(event: Event, text: str, observations: Mapping[str, str]) -> list[dict[str, Any]]:
    """The steps of one assistant message: one, or as many as it called tools."""
    if "step" in event.data:
        observation = observations.get(_key(event), "")
        response = {"response": text} if event.data["response"] else {}
        return [{**event.data["step"], "observation": observation, **response}]
    calls = event.data.get("message", {}).get("tool_calls") or []
    if not calls:
        return [{"action": "", "observation": "", "response": text, "thought": text}]
    made = []
    for call in calls:
        function = call.get("function", {})
        action = f"{function.get('name', '')} {function.get('arguments', '')}".strip()
        observation = observations.get(call.get("id", ""), "")
        made.append({"action": action, "observation": observation, "response": text, "thought": text})
    return made


def _key(event: Event) -> str:
    """What ties an observation to its message: the step's number, else the call."""
    return f"step {event.data['index']}" if "index" in event.data else event.call_id or f"seq {event.seq}"


def _instructions(history: list[Any], time_ns: int | None) -> list[NewEvent]:
    """The messages before the model's first own one (demonstrations are instructions too)."""
    own = [i for i, m in enumerate(history) if m.get("role") == "assistant" and not m.get("is_demo")]
    new = []
    for i, message in enumerate(history[: own[0]] if own else history):
        role = message.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            raise LogImportError(f"history[{i}].role is {role!r}; give system, user, assistant or tool")
        text, form = content_text(message.get("content"), f"history[{i}]")
        shown = "user" if role in ("assistant", "tool") else role
        part = {"part": "demo"} if message.get("is_demo") else {}
        new.append(NewEvent(EventKind.INSTRUCTION, text, {"role": shown, **part, **form}, time_ns=time_ns))
    return new
