"""The checkpoint that needs no model: read off the log and the disk, so that it passes the gates by construction."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from deeproot.runtime.context.checkpoint.files import Files
from deeproot.runtime.context.checkpoint.schema import (
    DIGITS,
    MAX_ARTIFACTS,
    MAX_HYPOTHESIS,
    MAX_MILESTONES,
    MAX_PROOF,
    Artifact,
    Checkpoint,
    Milestone,
)
from deeproot.runtime.context.checkpoint.trace import Outcome, Trace, shown
from deeproot.runtime.context.control_text import well_formed
from deeproot.runtime.context.event_actions import EventActions
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.filters.observation import Action
from deeproot.runtime.context.retention import facts

_SAFE = 2**53 - 1


@dataclass(frozen=True, slots=True)
class LedgerLimits:
    """How much a ledger holds. Of more milestones, anchors stay first, then changes of files, failures, the newest."""

    milestones: int = 40
    artifacts: int = 40
    hypothesis: int = 1_000
    """Characters of the model's newest words."""

    def __post_init__(self) -> None:
        for name, most in (
            ("milestones", MAX_MILESTONES),
            ("artifacts", MAX_ARTIFACTS),
            ("hypothesis", MAX_HYPOTHESIS),
        ):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"limits.{name} is {getattr(self, name)}; give 0 to {most}")


@dataclass(frozen=True, slots=True)
class _Done:
    outcome: Outcome
    action: Action


def ledger(trace: Trace, files: Files, limits: LedgerLimits | None = None) -> Checkpoint:
    """The deterministic checkpoint of a log: the same log and disk give the same one."""
    limits = limits or LedgerLimits()
    done = _actions(trace)
    kept = _kept(done, limits.milestones)
    return Checkpoint(
        upto=trace.upto,
        goal=trace.goal,
        milestones=tuple(_milestone(each, trace) for each in kept),
        hypothesis=_newest_words(trace)[: limits.hypothesis],
        constraints=tuple(trace.constraints),
        artifacts=_artifacts(trace, done, files, limits.artifacts),
    )


def _actions(trace: Trace) -> list[_Done]:
    """Every result with what its call did to files."""
    reader = EventActions()
    return [
        _Done(outcome, reader.read(outcome.event, trace.log.text(outcome.event), outcome.made))
        for outcome in trace.outcomes.values()
    ]


def _kept(done: Sequence[_Done], limit: int) -> list[_Done]:
    """The results that are worth a milestone, in order; of exact repeats the last."""
    last: dict[tuple[object, ...], _Done] = {}
    for each in done:
        event = each.outcome.event
        if abs(event.exit_code or 0) <= _SAFE:  # a wider one has no canonical spelling
            last[(each.outcome.call, event.exit_code, event.payload_hash)] = each

    def worth(each: _Done) -> tuple[bool, bool, bool, int]:
        event = each.outcome.event
        failed = event.exit_code not in (None, 0)
        return (bool(event.data.get("anchor")), bool(each.action.changes), failed, event.seq)

    best = sorted(last.values(), key=worth, reverse=True)[:limit]
    return sorted(best, key=lambda each: each.outcome.event.seq)


def _milestone(each: _Done, trace: Trace) -> Milestone:
    event = each.outcome.event
    return Milestone(
        event=event.seq,
        call_id=each.outcome.call_id,
        call=each.outcome.call,
        exit_code=event.exit_code,
        output_digest=event.payload_hash[:DIGITS],
        proof=_proof(each, trace),
    )


def _proof(each: _Done, trace: Trace) -> str:
    """The line that tells how a call ended: its first failing assertion, diagnostic or test, else the last line. Nothing for a file that was shown."""
    if each.action.shows is not None and not each.action.changes:
        return ""
    text = shown(trace.log.text(each.outcome.event))
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = facts(text)
    for kind in ("assertion", "place", "test"):
        wanted = {fact.line for fact in found if fact.kind == kind}
        line = next((line for line in lines if line in wanted), None)
        if line is not None:
            break
    else:
        line = lines[-1] if lines else ""
    proof = line[:MAX_PROOF]
    return proof if trace.holds(each.outcome, proof) else ""


def _newest_words(trace: Trace) -> str:
    """What the model said last, if it said anything."""
    for event in reversed(trace.events):
        if event.kind is EventKind.ASSISTANT and (words := trace.log.text(event).strip()):
            return words
    return ""


def _artifacts(trace: Trace, done: Sequence[_Done], files: Files, limit: int) -> tuple[Artifact, ...]:
    """Files that still are there: those that were changed first, then those that were read, newest first; by path."""
    versions = [
        str(event.data.get("uri", "")) for event in trace.events if event.kind is EventKind.FILE_VERSION
    ]
    changed = chain.from_iterable(each.action.changes for each in reversed(done))
    read = (each.action.shows for each in reversed(done) if each.action.shows is not None)
    hashes: dict[str, str] = {}
    for path in _names(chain(changed, reversed(versions), read), files):
        if len(hashes) == limit:
            break
        state = files.state(path)
        if state is not None:
            hashes[path] = state.hash[:DIGITS]
    return tuple(Artifact(path=path, hash=hashes[path]) for path in sorted(hashes))


def _names(uris: Iterable[str], files: Files) -> Iterable[str]:
    """Each file's name once. Names that are no Unicode have no canonical spelling and are left out."""
    names = (files.name(uri) for uri in uris)
    return dict.fromkeys(name for name in names if name and name == well_formed(name))
