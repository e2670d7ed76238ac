"""What a model sees of a checkpoint."""

from collections.abc import Collection
from typing import Any

from deeproot.runtime.context.canonical import canonical_json
from deeproot.runtime.context.checkpoint.diagnostics import open_diagnostics
from deeproot.runtime.context.checkpoint.make import AuditedCheckpoint
from deeproot.runtime.context.compaction.escrow import escrow_text
from deeproot.runtime.context.envelope import Envelopes, Provenance
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind


def record_text(
    log: EventLog, audited: AuditedCheckpoint, envelopes: Envelopes, stale: Collection[str] = ()
) -> str:
    """The record in its envelope, with the diagnostics that are open after its last event, from the log. The same bytes
    each time. `stale`: artifacts that have changed since it was made."""
    upto = audited.checkpoint.upto
    found = open_diagnostics(log, upto)
    body = record_body(log, audited, stale) + (f"\n{escrow_text(found)}" if found else "")
    read_at = log.event(upto).time_ns if upto else 0
    provenance = Provenance(f"checkpoint://e{upto}", read_at, audited.digest, "verified")
    return envelopes.wrap("artifact", body, provenance)


def record_body(log: EventLog, audited: AuditedCheckpoint, stale: Collection[str] = ()) -> str:
    """What stands in the envelope: milestones, hypothesis, artifacts in canonical form.

    Goal and constraints are not in it, since they stand in the root, from the log; of its constraints only lines of
    other instructions are. `stale`: artifacts that have changed since the checkpoint was made.
    """
    checkpoint = audited.checkpoint
    record: dict[str, Any] = checkpoint.model_dump(
        mode="json", include={"milestones", "hypothesis", "artifacts"}
    )
    lines = [text for text in checkpoint.constraints if text not in _constraints(log, checkpoint.upto)]
    if lines:
        record["instructions"] = lines
    head = (
        f"Checkpoint after event {checkpoint.upto}. Milestones and artifacts were checked against the log and the disk;"
        " the hypothesis is a claim. Earlier turns are in the archive; ask to read an event again by its number."
    )
    if stale:
        record["changed_since"] = sorted(stale)
        head += " Files in changed_since are no longer as they were: read them again."
    return f"{head}\n{canonical_json(record)}"


def _constraints(log: EventLog, upto: int) -> set[str]:
    return {
        log.text(event)
        for event in log.read(1, upto + 1)
        if event.kind is EventKind.INSTRUCTION and event.data.get("part") == "constraint"
    }
