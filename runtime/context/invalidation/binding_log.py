"""Bindings and the agent's own writes in the event log, so that a restart knows what it knew."""

from collections.abc import Mapping
from typing import Any

from deeproot.runtime.context.event_log import EventLogError, NewEvent
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.invalidation.entities import Entity, EntityKind
from deeproot.runtime.context.invalidation.graph import Binding, Observation

BINDING = "binding"
OWN_WRITE = "own_write"


def binding_event(observation: Observation) -> NewEvent:
    """An observation's bindings as an event of the log."""
    data = {
        "part": BINDING,
        "of": observation.seq,
        "own": [_spelled(binding) for binding in observation.own],
        "inputs": [_spelled(binding) for binding in observation.inputs],
    }
    return NewEvent(EventKind.STATE_CHANGE, data=data)


def own_write_event(by: int, identities: Mapping[Entity, str]) -> NewEvent:
    """What the call of event `by` left the sources as that it wrote."""
    wrote = [[entity.kind.value, entity.name, identity] for entity, identity in identities.items()]
    return NewEvent(EventKind.STATE_CHANGE, data={"part": OWN_WRITE, "by": by, "wrote": wrote})


def read_binding(event: Event) -> Observation | None:
    """The observation that a binding event is of; None for all other events. Raises `EventLogError` for a bad one."""
    if event.kind is not EventKind.STATE_CHANGE or event.data.get("part") != BINDING:
        return None
    of = event.data.get("of")
    if type(of) is not int or not 0 < of < event.seq:
        raise EventLogError(f"event {event.seq}: of is {of!r}; a binding names an event before it")
    own, inputs = (_bindings(event, name) for name in ("own", "inputs"))
    return Observation(of, own, inputs)


def read_own_write(event: Event) -> tuple[int, dict[Entity, str]] | None:
    """The writer and what it left, of an own-write event; None for all other events. Raises `EventLogError`."""
    if event.kind is not EventKind.STATE_CHANGE or event.data.get("part") != OWN_WRITE:
        return None
    by, wrote = event.data.get("by"), event.data.get("wrote")
    if type(by) is not int or not 0 < by < event.seq or not isinstance(wrote, list):
        raise EventLogError(f"event {event.seq}: by is {by!r}; an own write names an event before it")
    found: dict[Entity, str] = {}
    for entry in wrote:
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], str):
            raise EventLogError(f"event {event.seq}: wrote has {entry!r}; give [kind, name, identity]")
        found[_entity(event, "wrote", entry[0], entry[1])] = entry[2]
    return by, found


def _spelled(binding: Binding) -> list[Any]:
    return [binding.entity.kind.value, binding.entity.name, binding.identity, binding.expires_ns]


def _bindings(event: Event, name: str) -> tuple[Binding, ...]:
    entries = event.data.get(name)
    if not isinstance(entries, list):
        raise EventLogError(f"event {event.seq}: {name} is {entries!r}; give a list of bindings")
    made = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[2], str):
            raise EventLogError(
                f"event {event.seq}: {name} has {entry!r}; give [kind, name, identity, expires_ns]"
            )
        expires = entry[3]
        if expires is not None and type(expires) is not int:
            raise EventLogError(
                f"event {event.seq}: expires_ns of {name} is {expires!r}; give nanoseconds or null"
            )
        made.append(Binding(_entity(event, name, entry[0], entry[1]), entry[2], expires))
    return tuple(made)


def _entity(event: Event, where: str, kind: Any, name: Any) -> Entity:
    if kind not in {k.value for k in EntityKind} or not isinstance(name, str):
        raise EventLogError(
            f"event {event.seq}: {where} names {kind!r}, {name!r}; give a kind of source and its name"
        )
    return Entity(EntityKind(kind), name)
