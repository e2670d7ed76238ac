"""What a working set is made of: segments, each with its zone, its authority and its source."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from deeproot.runtime.context.tokenizer import TokenIds


class Zone(StrEnum):
    """How often a segment changes, from never within a task to every turn."""

    ROOT = "root"
    TRUNK = "trunk"
    LEAF = "leaf"


class Authority(IntEnum):
    """Whose word a segment is."""

    SUPERVISOR = 0
    VERIFIED = 1
    """Copies that the host itself read and hashed."""
    UNTRUSTED = 2
    """What tools returned, and the model's own claims."""


class Channel(StrEnum):
    """What a segment is for."""

    INSTRUCTION = "instruction"
    ARTIFACT = "artifact"
    OBSERVATION = "observation"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a segment's words come from, as they were read."""

    uri: str
    version: str
    """What tells this reading from another of the same thing: here the event's number."""
    trust: str
    """`supervisor`, `verified` or `untrusted`."""
    read_at: str
    """UTC, ISO 8601, frozen when the event was logged."""
    payload_hash: str
    """BLAKE3 of the raw payload, by which the archive gives it back."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the prompt with one source. Its ids depend on no other segment."""

    key: str
    """Stable over calls: the same event has the same key."""
    zone: Zone
    authority: Authority
    channel: Channel
    source: Source
    token_ids: TokenIds
    """All its ids, the template's words around its content included."""
