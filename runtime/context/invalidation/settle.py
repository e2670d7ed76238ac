"""Before a call: what no longer holds is found, priced, and evicted, replaced, spoken of or read anew."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.stand_in import Level, StandIn
from deeproot.runtime.context.control_text import EMPTY
from deeproot.runtime.context.cost_oracle import CostOracle, TokenCountOracle
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.invalidation.entities import Entity, EntityKind, Version
from deeproot.runtime.context.invalidation.evictable import Callers
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Finding, Invalidator, Reading
from deeproot.runtime.context.invalidation.look import read_file
from deeproot.runtime.context.invalidation.price import Choice, Invalid, Stakes, Treatment, choose
from deeproot.runtime.context.invalidation.tombstone import HOST, Tombstone, tail_event, told_by, tombstone_of
from deeproot.runtime.context.items import Item
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.working_set import Context, WorkingSet

NAME = "invalidation"
"""How stand-ins that it makes are signed."""
_DONE = (NAME, "superseded read")
_REPLACED = ("observation", "artifact")
_REFRESH_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Settled:
    """What one call of `Settler.before_call` did. `context`: what to send. `refreshed`: path and event of each file that
    was read anew; `choice`: None if nothing had to be treated."""

    context: Context
    findings: tuple[Finding, ...] = ()
    refreshed: Mapping[str, int] = field(default_factory=dict)
    choice: Choice | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """An observation to treat: what it is, what is said of it, what leaves with it, and what may stand in its place."""

    item: Item
    stone: Tombstone
    evictable: tuple[int, ...]
    in_place: str | None
    """None: it can only be spoken of."""


class Settler:
    """Brings the prompt up to date with the world before each call. Its decisions go into the log, so that a replay
    gives the same bytes.

    `oracle`: what a change of the prompt recomputes. `root`: the workspace, for short paths. `refresh_bytes`: longer
    files are not read anew by themselves. `read`: gives a file's bytes and the version that they are, or raises OSError;
    a host that may not read every path brings its own.
    """

    def __init__(
        self,
        working_set: WorkingSet,
        *,
        oracle: CostOracle | None = None,
        prices: Prices | None = None,
        stakes: Stakes | None = None,
        root: str = "",
        refresh_bytes: int = _REFRESH_BYTES,
        read: Callable[[str], tuple[bytes, Version]] = read_file,
    ) -> None:
        self._working_set = working_set
        self._oracle = oracle or TokenCountOracle()
        self._prices = prices or Prices()
        self._stakes = stakes or Stakes()
        self._root = root
        self._refresh_bytes = refresh_bytes
        self._read = read

    def before_call(
        self,
        log: EventLog,
        invalidator: Invalidator,
        *,
        needed: Collection[str] = (),
        cached: int | None = None,
    ) -> Settled:
        """Check what the prompt shows and settle what no longer holds; gives the context of the call.

        `needed`: absolute paths that the next action needs: if what shows one is stale, the file is read anew and its
        bytes appended. `cached`: how many tokens of the prompt the server still holds (None: all). Raises what
        `WorkingSet.assemble` raises.
        """
        context = self._working_set.assemble(log)
        live = _events_of(context)
        findings = invalidator.check(live)
        fresh = self._refresh(log, invalidator, findings, needed)
        new = self._untold(log, context, findings)
        if not new and not fresh:
            return Settled(context, tuple(findings))
        choice = self._treat(log, invalidator, context, new, fresh, cached) if new else None
        refreshed = {entity.name: seq for entity, seq in fresh.items()}
        return Settled(self._working_set.assemble(log), tuple(findings), refreshed, choice)

    def _untold(self, log: EventLog, context: Context, findings: Sequence[Finding]) -> list[Finding]:
        """Findings of which the prompt does not say already what they are."""
        shortened = self._working_set.staged(log).applied().shortened
        gone = {seq for seq, stand_in in shortened.items() if stand_in.by in _DONE}
        told: dict[int, State] = {}
        for segment in context.segments:
            if segment.source.uri == HOST:
                told.update(told_by(log.event(int(segment.key[1:]))))
        return [f for f in findings if f.seq not in gone and told.get(f.seq) is not f.state]

    def _refresh(
        self, log: EventLog, invalidator: Invalidator, findings: Sequence[Finding], needed: Collection[str]
    ) -> dict[Entity, int]:
        """Append what needed files are now, if nothing valid shows it."""
        stale = {f.seq for f in findings if f.state is State.STALE}
        fresh: dict[Entity, int] = {}
        for entity in {cause.entity: None for f in findings if f.seq in stale for cause in f.causes}:
            if entity.kind is not EntityKind.FILE or entity.name not in needed:
                continue
            if invalidator.graph.bound_to(entity) - stale:
                continue  # something that stands in the log shows it as it is
            try:
                data, version = self._read(entity.name)
            except OSError:
                continue  # it is gone: the tombstone says so
            if len(data) <= self._refresh_bytes:
                fresh[entity] = record.file_version(log, entity.uri, data)
                invalidator.bind(fresh[entity], Reading({entity: version}))
        return fresh

    def _treat(
        self,
        log: EventLog,
        invalidator: Invalidator,
        context: Context,
        findings: Sequence[Finding],
        fresh: Mapping[Entity, int],
        cached: int | None,
    ) -> Choice:
        staged = self._working_set.staged(log)
        items = {item.seq: item for item in staged.applied().items}
        callers = Callers(items.values())
        cases: dict[int, _Case] = {}
        for finding in findings:
            now = {cause.entity: invalidator.graph.current(cause.entity) for cause in finding.causes}
            stone = tombstone_of(finding, now, root=self._root, fresh=fresh)
            item = items[finding.seq]
            fixed = item.anchor or finding.state is not State.STALE or item.part not in _REPLACED
            in_place = None if fixed else staged.stager.stand_in(item, stone.text, "").text
            cases[item.seq] = _Case(item, stone, callers.evictable(item, finding.state), in_place)
        places = _places(context)
        choice = choose(
            context.token_ids,
            [self._invalid(places, case) for case in cases.values()],
            oracle=self._oracle,
            prices=self._prices,
            stakes=self._stakes,
            cached=cached,
        )
        log.extend(_events(choice, cases))
        return choice

    def _invalid(self, places: Mapping[str, Sequence[tuple[int, int]]], case: _Case) -> Invalid:
        """The case in tokens."""
        item, encode = case.item, self._working_set.encode
        tail = encode(case.stone.text)
        spans = tuple(span for seq in case.evictable or (item.seq,) for span in places.get(f"e{seq}", ()))
        if case.evictable:
            return Invalid(item.seq, spans, Treatment.EVICT, EMPTY, tail)
        if case.in_place is None:
            return Invalid(item.seq, spans, None, EMPTY, tail)
        around = max(
            0, item.tokens - encode(item.text).size
        )  # of the template; which ids they are does not count
        instead = np.concatenate([encode(case.in_place), np.zeros(around, np.int32)])
        return Invalid(item.seq, spans, Treatment.IN_PLACE, instead, tail)


def _events(choice: Choice, cases: Mapping[int, _Case]) -> list[NewEvent]:
    """What was decided, as the log keeps it."""
    made: list[NewEvent] = []
    told: list[Tombstone] = []
    for seq, treatment in choice.treatments.items():
        one = cases[seq]
        match treatment:
            case Treatment.EVICT:
                made.append(StandIn(Level.EVICTED, one.evictable, "", NAME).to_event())
            case Treatment.IN_PLACE if one.in_place is not None:
                made.append(StandIn(Level.SHORTENED, (seq,), one.in_place, NAME).to_event())
            case _:
                told.append(one.stone)
    return [*made, tail_event(told)] if told else made


def _events_of(context: Context) -> set[int]:
    """Numbers of the events of which the prompt has tokens; templates leave out some."""
    keys = (boundary.key for boundary in context.boundaries)
    return {int(key[1:]) for key in keys if key[0] == "e" and key[1:].isdigit()}


def _places(context: Context) -> dict[str, list[tuple[int, int]]]:
    """Token ranges of each segment in the prompt, by its key."""
    places: dict[str, list[tuple[int, int]]] = {}
    for boundary in context.boundaries:
        places.setdefault(boundary.key, []).append((boundary.start, boundary.end))
    return places
