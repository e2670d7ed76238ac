"""What a model is asked for, and what becomes of its answer: a proposal, never yet a checkpoint."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deeproot.runtime.context.canonical import canonical_json
from deeproot.runtime.context.checkpoint.audit import Contradiction
from deeproot.runtime.context.checkpoint.files import Files
from deeproot.runtime.context.checkpoint.schema import (
    DIGITS,
    MAX_ARTIFACTS,
    MAX_CALL,
    MAX_HYPOTHESIS,
    MAX_MILESTONES,
    MAX_PROOF,
    Artifact,
    Checkpoint,
    Digest,
    EventNumber,
    ExitCode,
    Line,
    Milestone,
    validation_text,
)
from deeproot.runtime.context.checkpoint.trace import Trace

_ABSENT = "0" * DIGITS


class _Proposed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ProposedMilestone(_Proposed):
    """A milestone; what is left out is taken from the log."""

    event: EventNumber
    call_id: str
    exit_code: ExitCode | None
    proof: Annotated[str, Field(max_length=MAX_PROOF)] = ""
    call: Annotated[str, Field(max_length=MAX_CALL + 40)] | None = None
    output_digest: Digest | None = None


class ProposedArtifact(_Proposed):
    """A file; a hash that is left out is taken from the disk."""

    path: Annotated[str, Field(min_length=1)]
    hash: Digest | None = None
    ranges: tuple[tuple[Line, Line], ...] = ()


class Proposal(_Proposed):
    """What a model may say. Goal and constraints it may leave out; if it says them, they must be word for word."""

    milestones: Annotated[tuple[ProposedMilestone, ...], Field(max_length=MAX_MILESTONES)]
    hypothesis: Annotated[str, Field(max_length=MAX_HYPOTHESIS)]
    artifacts: Annotated[tuple[ProposedArtifact, ...], Field(max_length=MAX_ARTIFACTS)] = ()
    goal: str | None = None
    constraints: tuple[str, ...] | None = None


PROMPT = (
    "Write a checkpoint of the work so far: one JSON object and nothing else, with\n"
    '"milestones": the calls whose outcome the next steps rest on, each with "event", "call_id" and "exit_code" as in the'
    ' record below, and "proof": the words of the output that show the outcome, copied exactly, or "";\n'
    '"hypothesis": what you now take to be the case, what you tried, which commands, exact failure messages, what is ruled'
    f" out; at most {MAX_HYPOTHESIS} characters;\n"
    '"artifacts": the files in work, each with "path" and, if you like, "ranges" of lines such as [[10, 40]].\n'
    "Leave out goal and constraints: they are kept for you, unchanged. It will be checked against the log and the disk."
)


def ask(
    trace: Trace, draft: Checkpoint, messages: Sequence[Mapping[str, Any]] | None
) -> list[Mapping[str, Any]]:
    """The request: the conversation so far (so that its cached prefix serves), then what is wanted and the record.

    `draft`: the deterministic ledger, whose milestones and artifacts are the record. `messages` None: goal and
    constraints stand for the conversation.
    """
    record = draft.model_dump(mode="json", include={"milestones", "artifacts"})
    before = list(messages) if messages is not None else []
    head = ""
    if messages is None:
        rules = "".join(f"- {text}\n" for text in trace.constraints)
        head = f"Task:\n{trace.goal}\n\nConstraints:\n{rules}\nLast words:\n{draft.hypothesis}\n\n"
    return [*before, {"role": "user", "content": f"{head}{PROMPT}\nRecord: {canonical_json(record)}"}]


def answer_schema() -> dict[str, Any]:
    """JSON schema of `Proposal`, for servers that can hold a model to one."""
    return Proposal.model_json_schema()


def rejection(reasons: Sequence[Contradiction]) -> str:
    """What the model is told: each contradiction, at most twenty."""
    lines = [f"- {reason}" for reason in reasons[:20]]
    more = f"\n({len(reasons) - 20} more)" if len(reasons) > 20 else ""
    return (
        "The checkpoint is rejected:\n" + "\n".join(lines) + more + "\nWrite it again, corrected: JSON only."
    )


def read_proposal(text: str) -> Proposal | Contradiction:
    """A model's answer, with or without a code fence or words around it."""
    found = re.search(r"\{.*\}", text, re.DOTALL)
    if found is None:
        return Contradiction("schema", "answer", json.dumps(text[:80]), "it must be one JSON object")
    try:
        return Proposal.model_validate_json(found[0])
    except ValidationError as error:
        return Contradiction("schema", "answer", "what the schema forbids", validation_text(error))


def complete(proposal: Proposal, trace: Trace, files: Files) -> Checkpoint:
    """The proposal as a checkpoint: what the model left out is filled in from log and disk, milestones are put in order.

    Nothing that the model said is corrected; that is for the gates to find.
    """
    made = sorted((_milestone(m, trace) for m in proposal.milestones), key=lambda m: m.event)
    constraints = trace.constraints if proposal.constraints is None else proposal.constraints
    return Checkpoint(
        upto=trace.upto,
        goal=trace.goal if proposal.goal is None else proposal.goal,
        milestones=tuple(made),
        hypothesis=proposal.hypothesis,
        constraints=tuple(constraints),
        artifacts=tuple(_artifact(a, files) for a in proposal.artifacts),
    )


def _milestone(said: ProposedMilestone, trace: Trace) -> Milestone:
    outcome = trace.outcomes.get(said.event)
    call = outcome.call if outcome is not None else ""
    output = outcome.event.payload_hash[:DIGITS] if outcome is not None else _ABSENT
    return Milestone(
        event=said.event,
        call_id=said.call_id,
        call=call if said.call is None else said.call,
        exit_code=said.exit_code,
        output_digest=output if said.output_digest is None else said.output_digest,
        proof=said.proof,
    )


def _artifact(said: ProposedArtifact, files: Files) -> Artifact:
    digest = said.hash
    if digest is None:
        state = files.state(said.path)
        digest = _ABSENT if state is None else state.hash[:DIGITS]
    return Artifact(path=said.path, hash=digest, ranges=said.ranges)
