"""The four gates. A checkpoint that a model wrote is a claim; the log and the disk say whether it is so."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from deeproot.runtime.context.checkpoint.files import Files
from deeproot.runtime.context.checkpoint.schema import Artifact, Checkpoint, Milestone
from deeproot.runtime.context.checkpoint.trace import Outcome, Trace

Gate = Literal["schema", "goal", "milestones", "constraints", "artifacts"]
_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Contradiction:
    """One thing that a checkpoint says and that is not so."""

    gate: Gate
    field: str
    """Such as `milestones[2].exit_code`."""
    claimed: str
    recorded: str
    """What the log or the disk says instead."""
    event: int | None = None
    """The event that says so, if one does."""

    def __str__(self) -> str:
        where = "" if self.event is None else f" (event {self.event})"
        return f"{self.field}: the checkpoint says {self.claimed}, but {self.recorded}{where}"


def audit(checkpoint: Checkpoint, trace: Trace, files: Files) -> list[Contradiction]:
    """Everything in the checkpoint that the log and the disk contradict; empty: it may be trusted.

    Goal: equal, character by character. Milestones: each result is in the log under that event and call, with that
    call's words, exit code and output, in the log's order, and the proof stands in the output. Constraints: all of
    the log's, verbatim; any other is a whole line of an instruction. Artifacts: each file is there with that hash.
    The hypothesis is not checked: it is shown as what it is.
    """
    return audit_log(checkpoint, trace) + audit_disk(checkpoint, files)


def audit_log(checkpoint: Checkpoint, trace: Trace) -> list[Contradiction]:
    """The gates of goal, constraints and milestones, which need the log alone."""
    found = [*_goal(checkpoint, trace), *_constraints(checkpoint, trace)]
    before = 0
    for i, milestone in enumerate(checkpoint.milestones):
        found += _milestone(f"milestones[{i}]", milestone, before, trace)
        before = max(before, milestone.event)
    return found


def audit_disk(checkpoint: Checkpoint, files: Files) -> list[Contradiction]:
    """The gate of the artifacts, as the disk is now."""
    found: list[Contradiction] = []
    paths: set[str] = set()
    for i, artifact in enumerate(checkpoint.artifacts):
        found += _artifact(f"artifacts[{i}]", artifact, paths, files)
        paths.add(artifact.path)
    return found


def _goal(checkpoint: Checkpoint, trace: Trace) -> Iterator[Contradiction]:
    if checkpoint.upto != trace.upto:
        yield Contradiction("goal", "upto", str(checkpoint.upto), f"the log was read up to {trace.upto}")
    if checkpoint.goal != trace.goal:
        at = next(
            (i for i, (a, b) in enumerate(zip(checkpoint.goal, trace.goal, strict=False)) if a != b),
            min(len(checkpoint.goal), len(trace.goal)),
        )
        yield Contradiction(
            "goal",
            "goal",
            _quote(checkpoint.goal[at:]) + f" from character {at}",
            f"the task goes on with {_quote(trace.goal[at:])}; the goal never changes",
            trace.goal_event,
        )


def _constraints(checkpoint: Checkpoint, trace: Trace) -> Iterator[Contradiction]:
    kept = set(checkpoint.constraints)
    for text, event in trace.constraints.items():
        if text not in kept:
            yield Contradiction(
                "constraints",
                "constraints",
                "nothing of it",
                f"the log has the constraint {_quote(text, 400)}; it must be kept word for word",
                event,
            )
    for i, text in enumerate(checkpoint.constraints):
        if text not in trace.constraints and trace.instruction_with_line(text) is None:
            yield Contradiction(
                "constraints",
                f"constraints[{i}]",
                _quote(text),
                "no instruction in the log has that line; constraints are never reworded or invented",
            )


def _milestone(field: str, claim: Milestone, before: int, trace: Trace) -> Iterator[Contradiction]:
    outcome = trace.outcomes.get(claim.event)
    if outcome is None:
        yield _invented(field, claim, trace)
        return
    seq = outcome.event.seq

    def wrong(name: str, claimed: str, recorded: str) -> Contradiction:
        return Contradiction("milestones", f"{field}.{name}", claimed, recorded, seq)

    if claim.event <= before:
        yield wrong(
            "event", str(claim.event), f"milestones follow the log's order, and {before} came earlier"
        )
    if claim.call_id != outcome.call_id:
        yield wrong("call_id", _quote(claim.call_id), f"the result is of call {_quote(outcome.call_id)}")
    if claim.call != outcome.call:
        yield wrong("call", _quote(claim.call), f"the call was {_quote(outcome.call, 250)}")
    if claim.exit_code != outcome.event.exit_code:
        yield wrong("exit_code", str(claim.exit_code), f"{outcome.call_id} {_ended(outcome)}")
    if not outcome.event.payload_hash.startswith(claim.output_digest):
        yield wrong("output_digest", claim.output_digest, f"the output is {outcome.event.payload_hash}")
    if claim.proof and not trace.holds(outcome, claim.proof):
        yield wrong("proof", _quote(claim.proof), "the output does not have these words")


def _invented(field: str, claim: Milestone, trace: Trace) -> Contradiction:
    kind = trace.events[claim.event - 1].kind if 0 < claim.event <= trace.upto else None
    if kind is None:
        recorded = f"the log has no event {claim.event} up to {trace.upto}"
    else:
        recorded = f"event {claim.event} is of kind {kind.value}, no tool result"
    real = [seq for seq, outcome in trace.outcomes.items() if outcome.call_id == claim.call_id]
    if real:
        recorded += f"; the result of {claim.call_id} is event {real[-1]}"
    elif claim.call_id in trace.pending:
        recorded += f"; {claim.call_id} was called at event {trace.pending[claim.call_id]} and has no result"
    else:
        recorded += f"; no call {_quote(claim.call_id)} was ever answered"
    event = None if kind is None else claim.event
    return Contradiction("milestones", f"{field}.event", f"{claim.event} answers a call", recorded, event)


def _artifact(field: str, claim: Artifact, before: set[str], files: Files) -> Iterator[Contradiction]:
    if claim.path in before:
        yield Contradiction("artifacts", f"{field}.path", _quote(claim.path), "it is already in the list")
    state = files.state(claim.path)
    if state is None:
        yield Contradiction("artifacts", f"{field}.path", _quote(claim.path), "there is no such file")
        return
    if not state.hash.startswith(claim.hash):
        yield Contradiction(
            "artifacts", f"{field}.hash", claim.hash, f"{claim.path} now hashes to {state.hash}"
        )
    for j, (first, last) in enumerate(claim.ranges):
        if not first <= last <= state.lines:
            yield Contradiction(
                "artifacts", f"{field}.ranges[{j}]", f"{first} to {last}", f"the file has {state.lines} lines"
            )


def _ended(outcome: Outcome) -> str:
    code = outcome.event.exit_code
    return "ended without a recorded exit code" if code is None else f"ended with exit code {code}"


def _quote(text: str, limit: int = _SHOWN) -> str:
    return repr(text if len(text) <= limit else f"{text[:limit]}…")
