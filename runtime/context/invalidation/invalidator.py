"""Keeps the observations of a log bound to their sources, and says which no longer hold."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.binding_log import (
    binding_event,
    own_write_event,
    read_binding,
    read_own_write,
)
from deeproot.runtime.context.invalidation.entities import UNVERSIONED, Entity, EntityKind, Probe, Version
from deeproot.runtime.context.invalidation.graph import Binding, DependencyGraph, Observation, State
from deeproot.runtime.context.invalidation.world import World

TTL_S: Mapping[EntityKind, float] = {
    EntityKind.PROC: 10.0,
    EntityKind.DB: 60.0,
    EntityKind.ENDPOINT: 30.0,
    EntityKind.SANDBOX: 60.0,
}
"""Seconds that a source without versions is believed (a process: where there is no /proc); a choice, not measured."""
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Cause:
    """A source that moved. `by`: event of the agent's own call that moved it; None: something outside did, or time."""

    entity: Entity
    by: int | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Observation `seq` no longer holds, or may not."""

    seq: int
    state: State
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Versions of sources just before something read them, for `Invalidator.bind`."""

    versions: Mapping[Entity, Version | None]


class Invalidator:
    """Bindings of one log. What it is told goes into the log; made anew from the log, it knows the same.

    `probes`: versions of databases, endpoints, sandboxes, by kind. `ttl_s`: seconds for what has no version.
    For one thread, but for `notify`.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        probes: Mapping[EntityKind, Probe] | None = None,
        ttl_s: Mapping[EntityKind, float] = TTL_S,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._log = log
        self._clock = clock
        self._ttl_s = dict(ttl_s)
        self._world = World(probes or {})
        self._notified: SimpleQueue[str] = SimpleQueue()
        self.graph = DependencyGraph()
        self._restore()

    def reading(self, entities: Iterable[Entity]) -> Reading:
        """Look at sources before a tool reads them: what it shows is that version or a newer one."""
        now = self._clock()
        versions = {entity: self._world.version(entity, now) for entity in entities}
        self.graph.update({entity: v.identity for entity, v in versions.items() if v is not None}, now)
        return Reading(versions)

    def bind(
        self,
        seq: int,
        own: Reading | None = None,
        *,
        inputs: Reading | None = None,
        derived_from: Iterable[int] = (),
    ) -> Finding | None:
        """Bind event `seq` to the sources that it shows and those that it was concluded from.

        Gives a finding at once if one of them changed while it was read. Raises ValueError if the event is bound
        already or is not in the log, or is derived from one that is not bound.
        """
        self._check_seq("seq", seq)
        observation = Observation(seq, self._bindings(own), self._bindings(inputs))
        full = self.graph.add(observation, derived_from)
        self._log.extend([binding_event(full)])
        self.reading(b.entity for b in (*full.own, *full.inputs) if b.entity.kind is not EntityKind.DIAG)
        return self._finding(seq)

    def replaces(self, target: Entity, seq: int, identity: str, *, inputs: Reading) -> list[Finding]:
        """Bind event `seq`, a new run of a build, test or linter; what earlier runs said otherwise is stale.

        `identity`: of what it said, such as exit code and payload hash. Raises ValueError if `target` is no diagnostic.
        """
        if target.kind is not EntityKind.DIAG:
            raise ValueError(f"target is {target.uri}; give a diag entity")
        self._check_seq("seq", seq)
        self.graph.update({target: identity}, self._clock())
        self._world.wrote(seq, {target: identity})
        self.bind(seq, Reading({target: Version(identity, self._clock())}), inputs=inputs)
        return self.findings()

    def wrote(self, paths: Iterable[str | os.PathLike[str]], by: int) -> list[Finding]:
        """First trigger: the agent's own call, event `by`, wrote, moved or deleted `paths` and has ended.

        What showed them is judged at once, whatever name it has for them. Gives all findings. Raises ValueError if the
        log has no event `by`.
        """
        self._check_seq("by", by)
        named = [os.fspath(path) for path in paths]
        touched = self._world.touched_by(named, self.graph.entities())
        left = self._look(touched, touched)
        if left:
            self._world.wrote(by, left)
            self._log.extend([own_write_event(by, left)])
        return self.findings()

    def notify(self, paths: Iterable[str]) -> None:
        """Second trigger: something happened to `paths`. They are hashed at the next check. From any thread."""
        for path in paths:
            self._notified.put(path)

    @property
    def notified(self) -> int:
        """How many notices wait for the next check."""
        return self._notified.qsize()

    def check(self, live: Collection[int] | None = None) -> list[Finding]:
        """Third trigger, before each call: every bound source is stat-ed, and hashed if that moved.

        `live`: events that the prompt shows (None: all that are bound); what no prompt shows is not looked at. Gives
        the findings among them.
        """
        notified = [self._notified.get() for _ in range(self._notified.qsize())]
        closely = self._world.touched_by(notified, self.graph.entities()) if notified else set()
        self._look(self._sources_of(live), closely)
        return self.findings(live)

    def findings(self, live: Collection[int] | None = None) -> list[Finding]:
        """All that is known not to hold, without looking again."""
        found = (self._finding(seq) for seq in self.graph.invalid() if live is None or seq in live)
        return [finding for finding in found if finding is not None]

    def showing(self, path: str | os.PathLike[str]) -> list[int]:
        """Events of the observations that are a copy of the file at `path`, under whatever name, ascending."""
        touched = self._world.touched_by([os.fspath(path)], self.graph.entities())
        seqs = {
            seq for entity in touched if entity.kind is EntityKind.FILE for seq in self.graph.bound_to(entity)
        }
        own = (
            seq
            for seq in seqs
            if any(binding.entity in touched for binding in self.graph.observation(seq).own)
        )
        return sorted(own)

    def drop(self, seqs: Iterable[int]) -> None:
        """Forget observations that no prompt will show again."""
        before = set(self.graph.entities())
        for seq in seqs:
            self.graph.remove(seq)
        self._world.forget(before - set(self.graph.entities()))

    def _check_seq(self, field: str, seq: int) -> None:
        if not 0 < seq <= len(self._log):
            raise ValueError(f"{field} is {seq}; give the number of an event, 1 to {len(self._log)}")

    def _restore(self) -> None:
        for event in self._log.read():
            observation = read_binding(event)
            if observation is not None and observation.seq not in self.graph:
                self.graph.add(observation)
                diagnosed = {
                    b.entity: b.identity for b in observation.own if b.entity.kind is EntityKind.DIAG
                }
                self.graph.update(diagnosed)
                self._world.wrote(observation.seq, diagnosed)
            elif (write := read_own_write(event)) is not None:
                self._world.wrote(*write)

    def _bindings(self, reading: Reading | None) -> tuple[Binding, ...]:
        if reading is None:
            return ()
        made = []
        for entity, version in reading.versions.items():
            if version is not None:
                made.append(Binding(entity, version.identity))
            elif entity.kind not in self._ttl_s:
                raise ValueError(
                    f"{entity.uri} has neither a version nor a lifetime; give a probe or ttl_s for it"
                )
            else:
                expires = self._clock() + int(self._ttl_s[entity.kind] * _NS)
                made.append(Binding(entity, UNVERSIONED, expires))
        return tuple(made)

    def _sources_of(self, live: Collection[int] | None) -> Iterable[Entity]:
        if live is None or self.graph.all_in(live):
            return list(self.graph.entities())
        wanted: dict[Entity, None] = {}
        for seq in live:
            if seq in self.graph:
                observation = self.graph.observation(seq)
                wanted.update((b.entity, None) for b in (*observation.own, *observation.inputs))
        return wanted

    def _look(self, entities: Iterable[Entity], closely: Collection[Entity]) -> dict[Entity, str]:
        """Bring the graph up to date on these sources; gives what they are, of those that may have moved."""
        now = self._clock()
        sources = [entity for entity in entities if entity.kind is not EntityKind.DIAG]
        found = self._world.moved(sources, now, closely)
        self.graph.update(found, now)
        return found

    def _finding(self, seq: int) -> Finding | None:
        state = self.graph.state(seq)
        if state is State.VALID:
            return None
        causes = {
            binding.entity: Cause(
                binding.entity, self._world.writer(binding.entity, self.graph.current(binding.entity) or "")
            )
            for binding in self.graph.moved(seq)
        }
        return Finding(seq, state, tuple(causes.values()))
