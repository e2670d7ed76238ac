"""Where a request's body says that its prompt is worth keeping: `deeproot.boundaries`, and Anthropic's `cache_control`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.explain.history import Chat
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.schemas import (
    MAX_SESSION,
    BoundaryOption,
    ChatCompletionRequest,
    GenerationRequest,
)
from deeproot.runtime.server.shared_roots import ROOT_ROLES

SESSION_HEADER = "x-deeproot-session"
_TTL_S = {None: 300.0, "5m": 300.0, "1h": 3600.0}
_ZONES = {"root": EvictionClass.ROOT, "trunk": EvictionClass.TRUNK, "leaf": EvictionClass.LEAF}


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a run of the prompt that is to be kept."""

    messages: int
    """How many messages it holds; 0: the tools alone."""
    token: int | None
    """Its end in tokens, which goes before `messages`."""
    zone: EvictionClass
    lease_s: float
    priority: int = 0


def session_of(request: Request, body: GenerationRequest) -> bytes:
    """The session that a request is of, from its body or its header; empty: none. Raises ApiError."""
    named = body.deeproot.session_id if body.deeproot is not None else None
    header = request.headers.get(SESSION_HEADER)
    if header is not None and len(header) > MAX_SESSION:
        raise invalid(
            f"The header X-Deeproot-Session has {len(header)} characters: use at most {MAX_SESSION}.",
            "X-Deeproot-Session",
        )
    if named is not None and header is not None and named != header:
        raise invalid(
            f"deeproot.session_id is {named!r} and the header X-Deeproot-Session {header!r}: send one, or the same.",
            "deeproot.session_id",
        )
    return session_bytes(named or header or "")


def session_bytes(name: str) -> bytes:
    """A session's name as the engine has it."""
    return name.encode("utf-8", "surrogatepass")


def lease_of(body: GenerationRequest) -> float:
    """Seconds for which the whole sequence is to be kept; 0: no such wish."""
    return (body.deeproot.lease_s or 0.0) if body.deeproot is not None else 0.0


def chat_marks(body: ChatCompletionRequest) -> list[Mark]:
    """Raises ApiError for a boundary behind the last message."""
    marks = []
    on_tools = [tool.cache_control for tool in body.tools or () if tool.cache_control is not None]
    if on_tools:
        marks.append(Mark(0, None, EvictionClass.ROOT, _TTL_S[on_tools[-1].ttl]))
    for i, message in enumerate(body.messages):
        content = message.content if isinstance(message.content, list) else []
        controls = [control for part in content if (control := part.cache_control) is not None]
        if controls:
            zone = EvictionClass.ROOT if message.role in ROOT_ROLES else EvictionClass.TRUNK
            marks.append(Mark(i + 1, None, zone, _TTL_S[controls[-1].ttl]))
    return marks + _own_marks(body, len(body.messages))


def text_marks(body: GenerationRequest) -> list[Mark]:
    """Of a plain prompt. Raises ApiError."""
    return _own_marks(body, 0)


def without_marks(chat: Chat) -> Chat:
    """What the template gets: it knows nothing of `cache_control`."""
    return Chat([_clean(m) for m in chat.messages], [_without(t) for t in chat.tools], chat.template_kwargs)


def _own_marks(body: GenerationRequest, num_messages: int) -> list[Mark]:
    options = body.deeproot.boundaries or () if body.deeproot is not None else ()
    return [_own_mark(option, num_messages, f"deeproot.boundaries[{i}]") for i, option in enumerate(options)]


def _own_mark(option: BoundaryOption, num_messages: int, field: str) -> Mark:
    if (option.token is None) == (option.messages is None):
        raise invalid(
            f"{field} needs either messages, how many of them it holds, or token, where it ends.", field
        )
    if option.messages is not None and option.messages > num_messages:
        raise invalid(
            f"{field}.messages is {option.messages}, but the request has {num_messages}.", f"{field}.messages"
        )
    zone = _ZONES[option.zone]
    return Mark(option.messages or 0, option.token, zone, option.lease_s, option.priority or 0)


def _clean(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, Sequence) or isinstance(content, str):
        return message
    return {**message, "content": [_without(part) for part in content]}


def _without(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in item.items() if key != "cache_control"}
