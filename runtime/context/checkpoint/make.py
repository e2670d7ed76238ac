"""Making a checkpoint: ask the model, hold its answer against the log, ask again with what was wrong, else the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from deeproot.runtime.context.chat_model import ChatModel, ModelError
from deeproot.runtime.context.checkpoint.audit import Contradiction, audit
from deeproot.runtime.context.checkpoint.files import Files, LoggedFiles, Snapshot
from deeproot.runtime.context.checkpoint.ledger import LedgerLimits, ledger
from deeproot.runtime.context.checkpoint.proposal import (
    answer_schema,
    ask,
    complete,
    read_proposal,
    rejection,
)
from deeproot.runtime.context.checkpoint.schema import Checkpoint, CheckpointError, digest
from deeproot.runtime.context.checkpoint.trace import Trace, read_trace
from deeproot.runtime.context.event_log import EventLog

_ECHO = 20_000
"""Characters of a rejected answer that the model is shown again."""


class CheckpointRejected(CheckpointError):
    """The gates found contradictions. `reasons`: which ones."""

    def __init__(self, reasons: Sequence[Contradiction]) -> None:
        super().__init__("the checkpoint is rejected:\n" + "\n".join(f"- {reason}" for reason in reasons))
        self.reasons = tuple(reasons)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One answer of the model that was not taken. `error`: there was no answer, and why."""

    answer: str
    reasons: tuple[Contradiction, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class AuditedCheckpoint:
    """A checkpoint that passed the gates. Only `accept` and `make_checkpoint` make one."""

    checkpoint: Checkpoint
    digest: str
    """BLAKE3 of its canonical bytes."""
    source: Literal["model", "ledger"]
    attempts: tuple[Attempt, ...] = ()
    """Answers that were rejected before."""


async def make_checkpoint(
    log: EventLog,
    upto: int | None = None,
    *,
    client: ChatModel | None = None,
    files: Files | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    tries: int = 2,
    max_tokens: int = 4_000,
    limits: LedgerLimits | None = None,
) -> AuditedCheckpoint:
    """An audited checkpoint of the log up to event `upto` (None: all of it).

    `client`: the model to ask, at most `tries` times; None, or if it fails each time: the deterministic ledger.
    `files`: the workspace (None: the file versions in the log). `messages`: the conversation as the model saw it, so
    that its cached prefix serves. Raises ValueError if `upto` or `tries` makes no sense.
    """
    if tries < 0:
        raise ValueError(f"tries is {tries}; give 0 or more")
    trace = read_trace(log, upto)
    disk = Snapshot(LoggedFiles(log, trace.upto) if files is None else files)
    draft = ledger(trace, disk, limits)
    if client is None:
        return _accept(draft, trace, disk, "ledger", ())
    attempts: list[Attempt] = []
    request = ask(trace, draft, messages)
    for _ in range(tries):
        outcome = await _try(client, request, draft, trace, disk, max_tokens)
        if isinstance(outcome, Checkpoint):
            return AuditedCheckpoint(outcome, digest(outcome), "model", tuple(attempts))
        attempts.append(outcome)
        if outcome.reasons:
            request = [
                *request,
                {"role": "assistant", "content": outcome.answer[:_ECHO]},
                {"role": "user", "content": rejection(outcome.reasons)},
            ]
    return _accept(draft, trace, disk, "ledger", attempts)


def ledger_checkpoint(
    log: EventLog,
    upto: int | None = None,
    *,
    files: Files | None = None,
    limits: LedgerLimits | None = None,
) -> AuditedCheckpoint:
    """The deterministic ledger as an audited checkpoint, at once and without a model. Arguments as `make_checkpoint`."""
    trace = read_trace(log, upto)
    disk = Snapshot(LoggedFiles(log, trace.upto) if files is None else files)
    return _accept(ledger(trace, disk, limits), trace, disk, "ledger", ())


def accept(
    log: EventLog,
    checkpoint: Checkpoint,
    *,
    files: Files | None = None,
    source: Literal["model", "ledger"] = "model",
) -> AuditedCheckpoint:
    """Hold a checkpoint, wherever it comes from, against the log and the disk.

    Raises `CheckpointRejected` with every contradiction, ValueError if the log is shorter than it says.
    """
    trace = read_trace(log, checkpoint.upto)
    return _accept(checkpoint, trace, LoggedFiles(log, trace.upto) if files is None else files, source, ())


def _accept(
    checkpoint: Checkpoint,
    trace: Trace,
    files: Files,
    source: Literal["model", "ledger"],
    attempts: Sequence[Attempt],
) -> AuditedCheckpoint:
    reasons = audit(checkpoint, trace, files)
    if reasons:
        raise CheckpointRejected(reasons)
    return AuditedCheckpoint(checkpoint, digest(checkpoint), source, tuple(attempts))


async def _try(
    client: ChatModel,
    request: Sequence[Mapping[str, Any]],
    draft: Checkpoint,
    trace: Trace,
    files: Files,
    max_tokens: int,
) -> Checkpoint | Attempt:
    try:
        answer = await client.complete(request, max_tokens=max_tokens, json_schema=answer_schema())
    except ModelError as error:
        return Attempt("", error=str(error))
    proposal = read_proposal(answer)
    if isinstance(proposal, Contradiction):
        return Attempt(answer, (proposal,))
    checkpoint = complete(proposal, trace, files)
    reasons = audit(checkpoint, trace, files)
    if draft.milestones and not checkpoint.milestones:  # nothing false in it, and nothing to go on from
        recorded = f"the log has {len(trace.outcomes)} results; keep those that the next steps rest on"
        reasons.append(Contradiction("milestones", "milestones", "nothing was done", recorded))
    return Attempt(answer, tuple(reasons)) if reasons else checkpoint
