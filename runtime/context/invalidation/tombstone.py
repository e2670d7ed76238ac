"""The line that takes the place of an observation that no longer holds, or is appended to say so."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deeproot.runtime.context.compaction.stand_in import as_ranges
from deeproot.runtime.context.event_log import NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.invalidation.entities import ABSENT, UNVERSIONED, Entity, EntityKind
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Finding

PART = "tombstone"
HOST = "host://tombstone"
"""Source of the segments that tombstones at the tail are."""
_ANEW = {
    EntityKind.FILE: "reread",
    EntityKind.DIR: "list anew",
    EntityKind.DIAG: "rerun",
    EntityKind.PROC: "look anew",
}
_NAMED = 2
"""Sources that one line names; the others are counted."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """`text` for observation `seq`, which is `state`."""

    seq: int
    state: State
    text: str


def tombstone_of(
    finding: Finding,
    identities: Mapping[Entity, str | None],
    *,
    root: str = "",
    fresh: Mapping[Entity, int] | None = None,
) -> Tombstone:
    """What, why and where to read anew, on one line of about 25 tokens beside the path.

    `identities`: what the sources are now. `root`: paths below it are given relative to it. `fresh`: events that show
    sources as they are now.
    """
    fresh = fresh or {}
    named = [
        _cause(cause.entity, cause.by, identities.get(cause.entity), root)
        for cause in finding.causes[:_NAMED]
    ]
    more = len(finding.causes) - len(named)
    why = ", ".join(named) + (f" and {more} more" if more else "")
    first = finding.causes[0].entity
    shown = fresh.get(first)
    anew = f"now #{shown}" if shown is not None else _ANEW.get(first.kind, "ask anew")
    word = "stale" if finding.state is State.STALE else "in doubt"
    anew = "check anew" if finding.state is State.DIRTY and shown is None else anew
    return Tombstone(finding.seq, finding.state, f"[{word} #{finding.seq}: {why}; {anew}]")


def tail_event(tombstones: Sequence[Tombstone]) -> NewEvent:
    """All of them as one event of the log, to be staged where it stands."""
    ordered = sorted(tombstones, key=lambda made: made.seq)
    stale = [made.seq for made in ordered if made.state is State.STALE]
    dirty = [made.seq for made in ordered if made.state is State.DIRTY]
    data = {"part": PART, "uri": HOST, "stale": as_ranges(stale), "dirty": as_ranges(dirty)}
    return NewEvent(EventKind.STATE_CHANGE, "\n".join(made.text for made in ordered), data)


def told_by(event: Event) -> dict[int, State]:
    """Which observations a tombstone at the tail speaks of, and as what; of other events nothing."""
    if event.kind is not EventKind.STATE_CHANGE or event.data.get("part") != PART:
        return {}
    told: dict[int, State] = {}
    for state in (State.DIRTY, State.STALE):
        for first, last in event.data.get(state.value, ()):
            told.update(dict.fromkeys(range(first, last + 1), state))
    return told


def _cause(entity: Entity, by: int | None, identity: str | None, root: str) -> str:
    name = _name(entity, root)
    if identity == UNVERSIONED:
        return f"{name} read too long ago"
    return (
        f"{name} {'deleted' if identity == ABSENT else 'changed'} by {'others' if by is None else f'#{by}'}"
    )


def _name(entity: Entity, root: str) -> str:
    name = entity.name
    if entity.kind in (EntityKind.FILE, EntityKind.DIR) and root:
        inside = name == root or name.startswith(root.rstrip(os.sep) + os.sep)
        name = os.path.relpath(name, root) if inside else name
    elif entity.kind is not EntityKind.FILE and entity.kind is not EntityKind.DIR:
        name = entity.uri
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in name)
