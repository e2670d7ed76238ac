"""The turns of a log as measures need them: what each action was, what it repeats, and what its results showed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deeproot.runtime.context.calls import arguments_of, calls_of
from deeproot.runtime.context.compaction.turns import command_of
from deeproot.runtime.context.event_actions import EventActions
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.filters.observation import Action, Observation, ObservationLog
from deeproot.runtime.context.measure.words import facts_in, facts_of_arguments


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of an action."""

    seq: int
    """Event of the message that makes it."""
    turn: int
    """1 for the first message of the model."""
    name: str
    command: str
    """The shell command that it runs, or its arguments as they were written."""
    changes: tuple[str, ...] = ()
    """Files that it writes, moves or deletes, whether or not it succeeded."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One observation: a tool result, or a version of a file."""

    index: int
    """In `Run.observations`."""
    seq: int
    turn: int
    """Of the newest message of the model before it."""
    facts: frozenset[str]


@dataclass(slots=True)
class Turn:
    """A message of the model, and what it repeats of earlier observations."""

    seq: int
    number: int
    time_ns: int
    text: str
    calls: list[ToolCall] = field(default_factory=list)
    refers: dict[str, Shown] = field(default_factory=dict)
    """Facts in its calls that an observation before it shows and no instruction gives; the newest that shows it."""
    stale: str = ""
    """Why it rests on an observation that no longer holds; empty: it does not."""


@dataclass(slots=True)
class Run:
    """A log, read once. `read_run` makes one."""

    turns: list[Turn] = field(default_factory=list)
    instructions: list[tuple[int, str]] = field(default_factory=list)
    constraints: dict[str, int] = field(default_factory=dict)
    """Text and event."""
    tools: set[str] = field(default_factory=set)
    """Names of tools that were called."""

    @property
    def actions(self) -> list[Turn]:
        """Turns that call a tool."""
        return [turn for turn in self.turns if turn.calls]


def read_run(log: EventLog) -> Run:
    """Read a log from its first event to its last."""
    reader = _Reader(log)
    for event in log.read():
        reader.take(event)
    return reader.run


class _Reader:
    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.run = Run()
        self._observations = ObservationLog()
        self._shown: list[Shown] = []
        self._by_fact: dict[str, list[int]] = {}
        self._given: set[str] = set()
        self._calls: dict[str, tuple[Turn, int, Mapping[str, Any]]] = {}
        self._done = EventActions()
        self._attempted = EventActions()

    def take(self, event: Event) -> None:
        match event.kind:
            case EventKind.INSTRUCTION:
                self._instruction(event)
            case EventKind.ASSISTANT:
                self._turn(event)
            case EventKind.TOOL_RESULT:
                self._result(event)
            case EventKind.FILE_VERSION:
                uri = str(event.data.get("uri", ""))
                self._show(event, Action("file version", shows=uri, changes=(uri,)))

    def _instruction(self, event: Event) -> None:
        if event.data.get("part") == "tools":
            return
        text = self._log.text(event)
        self.run.instructions.append((event.seq, text))
        self._given |= facts_in(text)
        if event.data.get("part") == "constraint":
            self.run.constraints.setdefault(text, event.seq)

    def _turn(self, event: Event) -> None:
        turn = Turn(event.seq, len(self.run.turns) + 1, event.time_ns, self._log.text(event))
        self.run.turns.append(turn)
        facts: frozenset[str] = frozenset()
        for call_id, call in calls_of(event).items():
            name = str(call.get("name", ""))
            self._calls[call_id] = (turn, len(turn.calls), call)
            turn.calls.append(ToolCall(event.seq, turn.number, name, command_of(call)[0]))
            self.run.tools.add(name)
            facts |= facts_of_arguments(arguments_of(call))
        for fact in sorted(facts - self._given):
            sources = self._by_fact.get(fact)
            if sources:
                turn.refers[fact] = self._shown[sources[-1]]
        turn.stale = self._stale_fact(turn)

    def _stale_fact(self, turn: Turn) -> str:
        """A fact that only views of files show which have been changed since, if the turn rests on one."""
        for fact in turn.refers:
            changes = [self._observations.superseded_by(i) for i in self._by_fact[fact]]
            if all(change is not None for change in changes):
                last = max(change for change in changes if change is not None)
                return f"{fact} was shown only by views that event {self._shown[last].seq} made stale"
        return ""

    def _result(self, event: Event) -> None:
        text = self._log.text(event)
        turn, index, call = self._calls.get(event.call_id or "", (None, 0, None))
        action = self._done.read(event, text, call)
        if turn is not None:
            attempt = self._attempted.read(replace(event, exit_code=None), text, call)
            turn.calls[index] = replace(turn.calls[index], changes=attempt.changes)
            turn.stale = turn.stale or self._stale_edit(attempt)
        self._show(event, action)

    def _stale_edit(self, attempt: Action) -> str:
        """A file that the call changes although its newest view is from before an earlier change."""
        for path in attempt.changes:
            probe = Action(attempt.command, shows=path)
            index = self._newest_view(probe)
            if index is not None and (change := self._observations.superseded_by(index)) is not None:
                return (
                    f"the newest view of {path} is older than its change at event {self._shown[change].seq}"
                )
        return ""

    def _newest_view(self, probe: Action) -> int | None:
        for shown in reversed(self._shown):
            if self._observations[shown.index].action.shows == probe.shows:
                return shown.index
        return None

    def _show(self, event: Event, action: Action) -> None:
        text = self._log.text(event)
        index = self._observations.append(Observation(event.seq, action, text))
        self._shown.append(Shown(index, event.seq, len(self.run.turns), facts_in(text)))
        for fact in self._shown[-1].facts:
            self._by_fact.setdefault(fact, []).append(index)
