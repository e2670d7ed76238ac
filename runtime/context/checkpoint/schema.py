"""What a checkpoint says: goal, milestones, hypothesis, constraints, artifacts. Its one spelling, and its hash.

From the design's source: <G, C, H, Omega, A>. Goal and constraints are the supervisor's and are taken from the log;
milestones, hypothesis and artifacts are what a model may propose, and what the gates in `audit` hold against the log
and the disk.
"""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deeproot.runtime.context.canonical import CanonicalError, canonical_json
from deeproot.runtime.context.events import payload_hash

MAX_CALL = 200
"""Characters of a call that a milestone spells before it says how many more there are."""
MAX_PROOF = 400
MAX_HYPOTHESIS = 2_000
MAX_MILESTONES = 1_000
MAX_ARTIFACTS = 1_000
_SAFE = 2**53 - 1

EventNumber = Annotated[int, Field(ge=0, le=_SAFE)]
Line = Annotated[int, Field(ge=1, le=_SAFE)]
ExitCode = Annotated[int, Field(ge=-_SAFE, le=_SAFE)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16,64}$")]
"""The first 16 or more hex digits of a BLAKE3, as envelopes show it."""
DIGITS = 16
"""How many of them the host writes."""


class CheckpointError(ValueError):
    """What was given is no checkpoint. The message names the field."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Milestone(_Strict):
    """A call that was made, and how it ended."""

    event: EventNumber
    """Number of the event that holds the result."""
    call_id: str
    call: Annotated[str, Field(max_length=MAX_CALL + 40)]
    """Name and arguments as `calls.spell_call` spells them."""
    exit_code: ExitCode | None
    """None: none was recorded."""
    output_digest: Digest
    proof: Annotated[str, Field(max_length=MAX_PROOF)]
    """Words of the output, verbatim, on one line or several; empty: none."""


class Artifact(_Strict):
    """A file, as it was hashed; its content is read again when it is needed."""

    path: Annotated[str, Field(min_length=1)]
    """Relative to the workspace."""
    hash: Digest
    """BLAKE3 of all its bytes."""
    ranges: tuple[tuple[Line, Line], ...] = ()
    """Lines that matter, first and last; empty: all."""


class Checkpoint(_Strict):
    """The state of a run after event `upto`."""

    version: Literal[1] = 1
    upto: EventNumber
    goal: str
    milestones: Annotated[tuple[Milestone, ...], Field(max_length=MAX_MILESTONES)]
    hypothesis: Annotated[str, Field(max_length=MAX_HYPOTHESIS)]
    """What the model takes to be the case. Never evidence."""
    constraints: tuple[str, ...]
    artifacts: Annotated[tuple[Artifact, ...], Field(max_length=MAX_ARTIFACTS)]


def canonical_bytes(checkpoint: Checkpoint) -> bytes:
    """The one spelling of a checkpoint (RFC 8785, UTF-8): equal checkpoints give equal bytes.

    Raises `CheckpointError` if a text in it is no Unicode.
    """
    try:
        return canonical_json(checkpoint.model_dump(mode="json")).encode("utf-8")
    except CanonicalError as error:
        raise CheckpointError(f"checkpoint: {error}") from None


def digest(checkpoint: Checkpoint) -> str:
    """BLAKE3 of the canonical bytes, 64 hex digits."""
    return payload_hash(canonical_bytes(checkpoint))


def parse(text: str | bytes) -> Checkpoint:
    """The inverse of `canonical_bytes`; takes any JSON spelling. Raises `CheckpointError` naming the field."""
    try:
        return Checkpoint.model_validate_json(text)
    except ValidationError as error:
        raise CheckpointError(validation_text(error)) from None


def validation_text(error: ValidationError) -> str:
    """What is wrong with which field, one line each, at most ten."""
    lines = []
    for found in error.errors(include_url=False, include_input=True)[:10]:
        place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in found["loc"]).lstrip(".")
        given = json.dumps(found["input"], default=str)
        lines.append(f"{place or 'checkpoint'}: {found['msg']} (given: {given[:80]})")
    return "\n".join(lines)
