"""What a tool's call came to, and how a log keeps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deeproot.runtime.agent.stream import Call
from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import Event, EventKind, encode_text
from deeproot.runtime.context.invalidation.entities import Entity, EntityKind, Version
from deeproot.runtime.context.invalidation.invalidator import Reading

Versions = Mapping[Entity, Version | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`output`: what the tool answers. `exit_code` None: it is not known how it ended.

    `shows`: sources of which the output is a copy, as they were; `inputs`: those that it was concluded from.
    `wrote`: BLAKE3 by absolute path of files that the call changed ("": whatever they are now). `target`: what was built
    or tested; a later run of the same replaces this one. `needs`: absolute paths of files that the model has to see anew.
    `raw`: the bytes that a binary output had.
    """

    output: str | bytes
    exit_code: int | None = 0
    shows: Versions = field(default_factory=dict)
    inputs: Versions = field(default_factory=dict)
    wrote: Mapping[str, str] = field(default_factory=dict)
    target: str = ""
    needs: Sequence[str] = ()
    raw: bytes = b""

    @property
    def payload(self) -> bytes:
        return encode_text(self.output) if isinstance(self.output, str) else self.output


def facts_of(outcome: Outcome) -> dict[str, Any]:
    """All but the output, as JSON."""
    facts: dict[str, Any] = {
        "shows": _spelled(outcome.shows),
        "inputs": _spelled(outcome.inputs),
        "wrote": dict(outcome.wrote),
        "target": outcome.target,
        "needs": list(outcome.needs),
    }
    return {key: value for key, value in facts.items() if value}


def outcome_of(log: EventLog, event: Event) -> Outcome:
    """The outcome that an event keeps. Raises EventLogError if its facts are none."""
    facts = event.data.get("facts") or {}
    try:
        return Outcome(
            log.payload(event),
            event.exit_code,
            _versions(event, facts.get("shows", ())),
            _versions(event, facts.get("inputs", ())),
            {str(path): str(identity) for path, identity in facts.get("wrote", {}).items()},
            str(facts.get("target", "")),
            [str(path) for path in facts.get("needs", ())],
        )
    except (TypeError, ValueError, AttributeError) as error:
        raise EventLogError(
            f"event {event.seq}: facts is {facts!r}, not what a call left ({error})"
        ) from None


def result_event(call: Call, outcome: Outcome) -> NewEvent:
    """The tool's result, for the prompt."""
    data = {"role": "tool", "message": {"name": call.name}, "facts": facts_of(outcome)}
    return NewEvent(EventKind.TOOL_RESULT, outcome.payload, data, call.id, outcome.exit_code)


def reading_of(versions: Versions) -> Reading | None:
    return Reading(versions) if versions else None


def _spelled(versions: Versions) -> list[list[Any]]:
    return [
        [entity.kind.value, entity.name, version.identity]
        for entity, version in versions.items()
        if version is not None
    ]


def _versions(event: Event, entries: Any) -> dict[Entity, Version | None]:
    return {
        Entity(EntityKind(kind), name): Version(identity, event.time_ns) for kind, name, identity in entries
    }
