"""Reads logs of chat completion requests: one JSON object a line, in any of the forms in which they are kept."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_WRAPPERS = ("body", "request", "params", "input", "kwargs")


class RequestLogError(ValueError):
    """A line is no request. The message names the line and field."""


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One call. `cached_tokens`: what the server said it reused, if the log has its answer."""

    line: int
    model: str
    session: str | None
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    cached_tokens: int | None
    prompt_tokens: int | None


def read_requests(lines: Iterable[str]) -> list[LoggedRequest]:
    """Requests in order. Takes the body itself, or it under `body` (batch files), `request`, `params`, `input`.

    Raises `RequestLogError` for a line that is no JSON object with a list of messages.
    """
    requests = [_parse(line, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not requests:
        raise RequestLogError("the log has no request; give one JSON object a line")
    return requests


def _parse(line: str, number: int) -> LoggedRequest:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise RequestLogError(f"line {number}: not JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists in lists in lists
        raise RequestLogError(f"line {number}: cannot be read as JSON ({error})") from None
    if not isinstance(record, dict):
        raise RequestLogError(f"line {number}: not an object; give one request a line")
    body = record
    for wrapper in _WRAPPERS:
        if isinstance(record.get(wrapper), dict) and "messages" in record[wrapper]:
            body = record[wrapper]
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(m, dict) and isinstance(m.get("role"), str) for m in messages
    ):
        raise RequestLogError(f"line {number}: messages is missing or no list of objects with a role")
    tools = [] if body.get("tools") is None else body["tools"]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestLogError(f"line {number}: tools is no list of objects")
    usage = _usage(record)
    details = usage.get("prompt_tokens_details")
    return LoggedRequest(
        line=number,
        model=str(body.get("model", "")),
        session=_session(record, body),
        messages=tuple(messages),
        tools=tuple(tools),
        cached_tokens=_count(details, "cached_tokens") if isinstance(details, dict) else None,
        prompt_tokens=_count(usage, "prompt_tokens"),
    )


def _session(record: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
    for holder in (record, body, body.get("metadata"), record.get("metadata")):
        for field in ("session_id", "conversation_id", "trace_id", "prompt_cache_key"):
            if isinstance(holder, dict) and isinstance(holder.get(field), str):
                return str(holder[field])
    return None


def _usage(record: Mapping[str, Any]) -> Mapping[str, Any]:
    response = record.get("response")
    holders = [record, response, response.get("body") if isinstance(response, dict) else None]
    for holder in holders:
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return dict(holder["usage"])
    return {}


def _count(holder: Mapping[str, Any], field: str) -> int | None:
    value = holder.get(field)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
