"""Checkpoints in the log itself: kept for ever, found again after a restart, and checked again when read."""

from deeproot.runtime.context.checkpoint.audit import audit_log
from deeproot.runtime.context.checkpoint.make import AuditedCheckpoint, CheckpointRejected
from deeproot.runtime.context.checkpoint.schema import CheckpointError, canonical_bytes, digest, parse
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind

PART = "checkpoint"
"""How the data of a checkpoint's event call it; no prompt shows such an event."""


def save(log: EventLog, audited: AuditedCheckpoint) -> int:
    """Append a checkpoint to its log, on disk when this returns. Returns the event's number."""
    data = {"part": PART, "upto": audited.checkpoint.upto, "source": audited.source}
    payload = canonical_bytes(audited.checkpoint)
    return log.append(EventKind.STATE_CHANGE, payload, data=data).seq


def latest(log: EventLog, upto: int | None = None) -> AuditedCheckpoint | None:
    """The newest checkpoint among the events up to `upto` (None: all), held against the log once more.

    The disk is not asked: files that changed since are for `restore` to name. None if there is none. Raises
    `CheckpointError` if what was saved is none, `CheckpointRejected` if the log contradicts it.
    """
    found: Event | None = None
    for event in log.read(1, None if upto is None else upto + 1):
        if event.kind is EventKind.STATE_CHANGE and event.data.get("part") == PART:
            found = event
    if found is None:
        return None
    checkpoint = parse(log.payload(found))
    if checkpoint.upto >= found.seq:
        raise CheckpointError(
            f"event {found.seq}: its checkpoint speaks of event {checkpoint.upto}, which came later"
        )
    reasons = audit_log(checkpoint, read_trace(log, checkpoint.upto))
    if reasons:
        raise CheckpointRejected(reasons)
    by_model = found.data.get("source") == "model"
    return AuditedCheckpoint(checkpoint, digest(checkpoint), "model" if by_model else "ledger")
