"""The graph against a model that works everything out anew from what was said."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.invalidation.binding_log import (
    binding_event,
    own_write_event,
    read_binding,
    read_own_write,
)
from deeproot.runtime.context.invalidation.entities import Entity, EntityKind
from deeproot.runtime.context.invalidation.graph import Binding, DependencyGraph, Observation, State

ENTITIES = [Entity(EntityKind.FILE, f"/{name}") for name in "abcd"]
BINDINGS = st.builds(
    Binding,
    st.sampled_from(ENTITIES),
    st.sampled_from(["v0", "v1"]),
    st.none() | st.integers(1, 20),
)
SOME = st.lists(BINDINGS, max_size=3).map(tuple)


@dataclass
class Model:
    """What was said, and nothing worked out."""

    observations: dict[int, tuple[set[Binding], set[Binding]]] = field(default_factory=dict)
    world: dict[Entity, str] = field(default_factory=dict)
    now: int = 0

    def bound(self) -> set[Entity]:
        return {b.entity for own, inputs in self.observations.values() for b in own | inputs}

    def add(
        self, seq: int, own: tuple[Binding, ...], inputs: tuple[Binding, ...], sources: list[int]
    ) -> None:
        every = set(inputs).union(*[self.observations[s][0] | self.observations[s][1] for s in sources])
        self.observations[seq] = (set(own), every)
        for binding in [*own, *inputs]:
            self.world.setdefault(binding.entity, binding.identity)
        self.forget()

    def forget(self) -> None:
        self.world = {entity: identity for entity, identity in self.world.items() if entity in self.bound()}

    def states(self) -> dict[int, State]:
        found = {}
        for seq, (own, inputs) in sorted(self.observations.items()):
            bad = [any(self.gone(b) for b in bindings) for bindings in (own, inputs)]
            if any(bad):
                found[seq] = State.STALE if bad[0] else State.DIRTY
        return found

    def gone(self, binding: Binding) -> bool:
        expired = binding.expires_ns is not None and self.now >= binding.expires_ns
        return expired or self.world[binding.entity] != binding.identity


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_states_equal_those_worked_out_anew(data: st.DataObject) -> None:
    graph, model = DependencyGraph(), Model()
    for seq in range(1, data.draw(st.integers(1, 12), label="steps") + 1):
        match data.draw(st.sampled_from(["add", "add", "update", "remove"]), label="step"):
            case "add":
                own, inputs = data.draw(SOME), data.draw(SOME)
                bound = sorted(model.observations)
                sources = data.draw(st.lists(st.sampled_from(bound), max_size=2)) if bound else []
                full = graph.add(Observation(seq, own, inputs), sources)
                model.add(seq, own, inputs, sources)
                assert set(full.inputs) == model.observations[seq][1]
            case "update":
                said = data.draw(
                    st.dictionaries(st.sampled_from(ENTITIES), st.sampled_from(["v0", "v1", "v2"]))
                )
                now = data.draw(st.integers(0, 25))
                graph.update(said, now)
                model.now = max(model.now, now)
                model.world.update({entity: v for entity, v in said.items() if entity in model.world})
            case "remove":
                gone = data.draw(st.integers(1, 12))
                graph.remove(gone)
                model.observations.pop(gone, None)
                model.forget()
        assert graph.invalid() == model.states()
        assert set(graph.entities()) == model.bound()
        for entity in ENTITIES:
            assert graph.current(entity) == model.world.get(entity)
            showing = {
                s for s, pair in model.observations.items() if entity in {b.entity for b in pair[0] | pair[1]}
            }
            assert graph.bound_to(entity) == showing
        for seq in model.observations:
            assert (graph.state(seq) is not State.VALID) == bool(graph.moved(seq))


def test_what_the_graph_refuses() -> None:
    graph = DependencyGraph()
    graph.add(Observation(1))
    with pytest.raises(ValueError, match="event 1 is bound already"):
        graph.add(Observation(1))
    with pytest.raises(ValueError, match="derived from event 7, which is not bound"):
        graph.add(Observation(2), [7])
    with pytest.raises(KeyError):
        graph.state(2)


@settings(max_examples=40, deadline=None)
@given(SOME, SOME, st.dictionaries(st.sampled_from(ENTITIES), st.text(max_size=3)))
def test_bindings_and_writes_come_back_from_the_log(
    own: tuple[Binding, ...], inputs: tuple[Binding, ...], wrote: dict[Entity, str]
) -> None:
    log = EventLog.memory()
    log.append(EventKind.TOOL_RESULT, "x")
    observation = Observation(1, own, inputs)
    binding, write = log.extend([binding_event(observation), own_write_event(1, wrote)])
    assert (read_binding(binding), read_own_write(binding)) == (observation, None)
    assert (read_binding(write), read_own_write(write)) == (None, (1, wrote))


JSON = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(["file", "db", "x"]),
    lambda inner: st.lists(inner, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["binding", "own_write"]), st.fixed_dictionaries({}, optional=dict.fromkeys(("of", "own", "inputs", "by", "wrote"), JSON)))  # fmt: skip
def test_whatever_stands_in_the_log_is_read_or_refused_by_name(part: str, data: dict[str, object]) -> None:
    log = EventLog.memory()
    log.append(EventKind.TOOL_RESULT, "x")
    event = log.append(EventKind.STATE_CHANGE, data={"part": part, **data})
    read = read_binding if part == "binding" else read_own_write
    found, refused = None, ""
    try:
        found = read(event)
    except EventLogError as error:
        refused = str(error)
    assert (found is not None) != refused.startswith("event 2: ")
