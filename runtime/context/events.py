"""What an agent's run consists of: typed events, each bound to the bytes that it carries."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from blake3 import blake3


class EventKind(StrEnum):
    """What happened."""

    INSTRUCTION = "instruction"
    """Words of the supervisor or the user: policy, constraint, tool schemas, task, a later user turn."""
    ASSISTANT = "assistant"
    """A message of the model, with its tool calls. A claim, never evidence."""
    TOOL_RESULT = "tool_result"
    """What a tool answered to a call."""
    FILE_VERSION = "file_version"
    """The bytes of a file as the host read them."""
    DIAGNOSTIC = "diagnostic"
    """What the host extracted from a tool's output."""
    STATE_CHANGE = "state_change"
    """A fact about the environment or the run, set by the host."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log. The payload's bytes lie in the archive under `payload_hash`."""

    seq: int
    """1 for the first event, then without gaps."""
    time_ns: int
    """When it was appended: nanoseconds since 1970, UTC. Frozen with the event."""
    kind: EventKind
    payload_hash: str
    """BLAKE3 of the payload, 64 hex digits."""
    payload_size: int
    """Bytes."""
    call_id: str | None
    """The tool call that this event makes, answers or stems from."""
    exit_code: int | None
    data: Mapping[str, Any]
    """Structured facts beside the payload, in the order in which they were given. Not to be changed."""


def payload_hash(payload: bytes) -> str:
    """BLAKE3 of `payload` as 64 hex digits."""
    return blake3(payload).hexdigest()


def payload_text(payload: bytes) -> str:
    """A payload as text that every tokenizer takes: bytes that are no UTF-8 become U+FFFD."""
    return payload.decode("utf-8", "replace")


def encode_text(text: str) -> bytes:
    """Text as payload bytes; lone surrogates survive, so that exports give back what was imported."""
    return text.encode("utf-8", "surrogatepass")


def decode_exact(payload: bytes) -> str:
    """The inverse of `encode_text`. Raises UnicodeDecodeError for payloads that never were text."""
    return payload.decode("utf-8", "surrogatepass")
