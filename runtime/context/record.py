"""Short ways to append the events that an agent's host has to say. Each returns the new event's number."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.frozen_tools import spell_tools


def policy(log: EventLog, text: str, *, conditions: Sequence[str] = ()) -> int:
    """The supervisor's policy, first part of the root. `conditions`: the yes-or-no facts that shaped this text."""
    data = {"role": "system", "part": "policy", "conditions": list(conditions)}
    return log.append(EventKind.INSTRUCTION, text, data=data).seq


def constraint(log: EventLog, text: str) -> int:
    """One constraint, kept verbatim in the root and restated by the reminder."""
    return log.append(EventKind.INSTRUCTION, text, data={"role": "system", "part": "constraint"}).seq


def tools(log: EventLog, schemas: Sequence[Mapping[str, Any]]) -> int:
    """The tool schemas in OpenAI's form (`{"type": "function", "function": {...}}`).

    Those with `defer_loading: true` stay out of the prompt until a search finds them (`deferred`).
    """
    for i, schema in enumerate(schemas):
        if not isinstance(schema.get("function"), Mapping) or not isinstance(
            schema["function"].get("name"), str
        ):
            raise EventLogError(f"tools[{i}].function.name is missing; give OpenAI's form of a tool")
    payload = json.dumps(list(schemas))
    try:
        spell_tools(payload)
    except ValueError as error:
        raise EventLogError(str(error)) from None
    return log.append(EventKind.INSTRUCTION, payload, data={"part": "tools"}).seq


def user(log: EventLog, text: str) -> int:
    """A user's message: the task if it is the first, a turn later."""
    return log.append(EventKind.INSTRUCTION, text, data={"role": "user"}).seq


def assistant(
    log: EventLog, text: str, *, tool_calls: Sequence[Mapping[str, Any]] = (), reasoning: str = ""
) -> int:
    """The model's message as it came: `tool_calls` in OpenAI's form, `reasoning` apart."""
    return log.extend([assistant_event(text, tool_calls=tool_calls, reasoning=reasoning)])[0].seq


def assistant_event(
    text: str, *, tool_calls: Sequence[Mapping[str, Any]] = (), reasoning: str = ""
) -> NewEvent:
    """What `assistant` appends."""
    message: dict[str, Any] = {}
    if tool_calls:
        message["tool_calls"] = [dict(call) for call in tool_calls]
    if reasoning:
        message["reasoning_content"] = reasoning
    return NewEvent(EventKind.ASSISTANT, text, {"role": "assistant", "message": message})


def tool_result(
    log: EventLog,
    call_id: str,
    payload: str | bytes,
    *,
    name: str = "",
    exit_code: int | None = None,
    uri: str = "",
    seconds: float | None = None,
) -> int:
    """A tool's answer, raw. `uri`: what was read or run, if the host knows it better than the tool's name.
    `seconds`: how long the tool took, for the time sense of the status."""
    data: dict[str, Any] = {"role": "tool", "message": {"name": name} if name else {}}
    if uri:
        data["uri"] = uri
    if seconds is not None:
        data["seconds"] = seconds
    return log.append(EventKind.TOOL_RESULT, payload, data=data, call_id=call_id, exit_code=exit_code).seq


def file_version(
    log: EventLog, uri: str, payload: str | bytes, *, call_id: str | None = None, keep: Sequence[str] = ()
) -> int:
    """The bytes of a file as the host itself read them; the newest version is the one that is staged.

    `keep`: symbols that stay whole where the file is staged as its skeleton, such as `acquire` or `Pool.acquire`.
    """
    data = {"uri": uri, **({"keep": list(keep)} if keep else {})}
    return log.append(EventKind.FILE_VERSION, payload, data=data, call_id=call_id).seq


def diagnostic(log: EventLog, payload: str, *, call_id: str | None = None, uri: str = "") -> int:
    """What the host extracted from a tool's output (untrusted words, host's form)."""
    return log.append(EventKind.DIAGNOSTIC, payload, data={"uri": uri or "diag://host"}, call_id=call_id).seq


def state(log: EventLog, name: str, value: str) -> int:
    """A reading of the environment; the newest value of each name stands at the tail."""
    return log.append(EventKind.STATE_CHANGE, value, data={"name": name}).seq


def outcome(log: EventLog, passed: bool, *, judge: str) -> int:
    """How the task ended, as tests or another judge outside the model found it. `judge`: which one."""
    if not judge:
        raise EventLogError("judge is empty; name the tests that decided, never the model")
    return log.append(EventKind.STATE_CHANGE, data={"part": "outcome", "passed": passed, "judge": judge}).seq


def usage(
    log: EventLog,
    *,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    ttft_s: float | None = None,
) -> int:
    """What the server reported of the call whose answer was appended last; `ttft_s`: seconds to the first token."""
    made = usage_event(
        prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens, ttft_s=ttft_s
    )
    return log.extend([made])[0].seq


def usage_event(
    *, prompt_tokens: int, cached_tokens: int | None, output_tokens: int, ttft_s: float | None = None
) -> NewEvent:
    """What `usage` appends. `cached_tokens` None: the server does not say."""
    if not 0 <= (cached_tokens or 0) <= prompt_tokens or output_tokens < 0:
        raise EventLogError(
            f"usage of {prompt_tokens} prompt, {cached_tokens} cached, {output_tokens} output tokens cannot be"
        )
    data = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    if cached_tokens is not None:
        data["cached_tokens"] = cached_tokens
    return NewEvent(EventKind.STATE_CHANGE, data={"part": "usage", **data, "ttft_s": ttft_s})
