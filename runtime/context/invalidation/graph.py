"""Which observation is a copy of what: a bipartite graph of sources and observations. Pure, no file is touched."""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from deeproot.runtime.context.invalidation.entities import Entity


class State(StrEnum):
    """Whether what an observation says still holds."""

    VALID = "valid"
    DIRTY = "dirty"
    """Something that it was derived from moved: it may be wrong."""
    STALE = "stale"
    """What it is a copy of is no longer so."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The version of a source that an observation shows. `expires_ns`: when it is taken to be stale whatever happens;
    only for sources without versions."""

    entity: Entity
    identity: str
    expires_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Event `seq`: a copy of its `own` sources, concluded from its `inputs`."""

    seq: int
    own: tuple[Binding, ...] = ()
    inputs: tuple[Binding, ...] = ()


class DependencyGraph:
    """Observations, the sources that they are bound to, and the state of each.

    The state is a function of the versions shown and the versions now: a source that goes back to what it was makes
    its observations valid again. Time only goes forward.
    """

    def __init__(self) -> None:
        self._observations: dict[int, Observation] = {}
        self._bound: dict[Entity, set[int]] = {}
        self._current: dict[Entity, str] = {}
        self._invalid: dict[int, State] = {}
        self._expiring: set[int] = set()
        self._now = 0

    def __contains__(self, seq: int) -> bool:
        return seq in self._observations

    def all_in(self, seqs: Collection[int]) -> bool:
        """Whether every bound event is among `seqs`."""
        return self._observations.keys() <= (seqs if isinstance(seqs, Set) else set(seqs))

    def add(self, observation: Observation, derived_from: Iterable[int] = ()) -> Observation:
        """Bind an observation; what it is derived from adds its sources to the inputs, as they were shown there.

        Gives the observation with all its inputs. Raises ValueError if the event is bound already or one that it is
        derived from is not.
        """
        if observation.seq in self._observations:
            raise ValueError(f"event {observation.seq} is bound already; remove it first")
        inputs = list(observation.inputs)
        for seq in derived_from:
            if seq not in self._observations:
                raise ValueError(f"event {observation.seq} is derived from event {seq}, which is not bound")
            source = self._observations[seq]
            inputs += [*source.own, *source.inputs]
        full = Observation(observation.seq, observation.own, tuple(dict.fromkeys(inputs)))
        self._observations[full.seq] = full
        for binding in (*full.own, *full.inputs):
            self._bound.setdefault(binding.entity, set()).add(full.seq)
            self._current.setdefault(binding.entity, binding.identity)
            if binding.expires_ns is not None:
                self._expiring.add(full.seq)
        self._judge([full.seq])
        return full

    def remove(self, seq: int) -> None:
        """Forget an observation that no prompt shows any more, and sources that only it was bound to."""
        observation = self._observations.pop(seq, None)
        if observation is None:
            return
        self._invalid.pop(seq, None)
        self._expiring.discard(seq)
        for binding in (*observation.own, *observation.inputs):
            bound = self._bound.get(binding.entity)
            if bound is not None:
                bound.discard(seq)
                if not bound:
                    del self._bound[binding.entity], self._current[binding.entity]

    def update(self, current: Mapping[Entity, str], now_ns: int = 0) -> None:
        """Say what sources are now; those that nothing is bound to are left out."""
        self._now = max(self._now, now_ns)
        affected = set(self._expiring)
        for entity, identity in current.items():
            if entity in self._bound and self._current[entity] != identity:
                self._current[entity] = identity
                affected |= self._bound[entity]
        self._judge(affected)

    def observation(self, seq: int) -> Observation:
        """The observation of event `seq`. Raises KeyError if it is not bound."""
        return self._observations[seq]

    def bound_to(self, entity: Entity) -> frozenset[int]:
        """Events of the observations that a source is bound to."""
        return frozenset(self._bound.get(entity, ()))

    def entities(self) -> Iterable[Entity]:
        """Every source that something is bound to."""
        return self._bound.keys()

    def current(self, entity: Entity) -> str | None:
        """What a source is now, as far as was said; None if nothing is bound to it."""
        return self._current.get(entity)

    def state(self, seq: int) -> State:
        """Raises KeyError if the event is not bound."""
        self._observations[seq]
        return self._invalid.get(seq, State.VALID)

    def invalid(self) -> dict[int, State]:
        """Events of the observations that are dirty or stale, ascending."""
        return dict(sorted(self._invalid.items()))

    def moved(self, seq: int) -> list[Binding]:
        """The bindings for which an observation is not valid, own ones first."""
        observation = self._observations[seq]
        return [b for b in (*observation.own, *observation.inputs) if self._moved(b)]

    def _moved(self, binding: Binding) -> bool:
        expired = binding.expires_ns is not None and binding.expires_ns <= self._now
        return expired or self._current[binding.entity] != binding.identity

    def _judge(self, seqs: Iterable[int]) -> None:
        for seq in seqs:
            observation = self._observations[seq]
            if any(map(self._moved, observation.own)):
                self._invalid[seq] = State.STALE
            elif any(map(self._moved, observation.inputs)):
                self._invalid[seq] = State.DIRTY
            else:
                self._invalid.pop(seq, None)
