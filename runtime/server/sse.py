"""Server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from deeproot.runtime.server.errors import ApiError


@dataclass(frozen=True, slots=True)
class Framing:
    """How one surface writes its stream."""

    event: Callable[[object], bytes]
    """A chunk as an event."""
    failure: Callable[[ApiError], bytes]
    """The event that tells of a failure after the stream has begun."""
    end: bytes
    """What ends a stream, also after a failure; may be empty."""


def event(content: object) -> bytes:
    """An event with `content` as JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def named_event(name: str, content: object) -> bytes:
    """An event with a name, and `content` as JSON."""
    return b"event: " + name.encode() + b"\n" + event(content)


def _failure(error: ApiError) -> bytes:
    return b"data: " + error.body + b"\n\n"


COMPLETIONS_FRAMING = Framing(event, _failure, b"data: [DONE]\n\n")
"""Of OpenAI's chat and text completions."""
