"""The raw log as the gates need it: goal, constraints, and what every call really gave."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deeproot.runtime.context.calls import calls_of, spell_call
from deeproot.runtime.context.checkpoint.schema import MAX_CALL
from deeproot.runtime.context.control_text import well_formed
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.filters.base import FilterContext
from deeproot.runtime.context.filters.terminal import TerminalFilter


@dataclass(frozen=True, slots=True)
class Outcome:
    """One tool result of the log."""

    event: Event
    call_id: str
    call: str
    """The call that it answers, spelled on one line; empty if the log does not have it."""
    made: Mapping[str, Any] | None
    """That call as `calls_of` has it."""


@dataclass(slots=True)
class Trace:
    """Everything up to event `upto`. `read_trace` makes one; it belongs to whoever made it."""

    log: EventLog
    upto: int
    goal: str = ""
    goal_event: int | None = None
    constraints: dict[str, int] = field(default_factory=dict)
    """Text of each constraint, and the event that has it, in the log's order."""
    instructions: list[Event] = field(default_factory=list)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By event number, in the log's order."""
    events: list[Event] = field(default_factory=list)
    """All of them; event n at index n - 1."""
    pending: dict[str, int] = field(default_factory=dict)
    """Calls without a result, and the event that made them."""

    def holds(self, outcome: Outcome, words: str) -> bool:
        """Whether the output has these words, raw or as a terminal shows it."""
        text = self.log.text(outcome.event)
        return words in text or words in shown(text)

    def instruction_with_line(self, line: str) -> int | None:
        """The first instruction of which `line` is a whole line, blanks at its ends aside."""
        for event in self.instructions:
            text = self.log.text(event)
            if line.strip() and line in (found.strip() for found in (*text.split("\n"), text)):
                return event.seq
        return None


def shown(text: str) -> str:
    """A text as a terminal shows it."""
    return TerminalFilter().apply(text, FilterContext()).text


def read_trace(log: EventLog, upto: int | None = None) -> Trace:
    """Read the log up to event `upto` (None: all of it). Raises ValueError if the log is shorter than that."""
    last = len(log) if upto is None else upto
    if not 0 <= last <= len(log):
        raise ValueError(f"upto is {upto}, but the log has {len(log)} events; give at most that")
    trace = Trace(log, last)
    calls: dict[str, Mapping[str, Any]] = {}
    for event in log.read(1, last + 1):
        trace.events.append(event)
        match event.kind:
            case EventKind.INSTRUCTION:
                _instruction(trace, event)
            case EventKind.ASSISTANT:
                made = calls_of(event)
                calls.update(made)
                trace.pending.update(dict.fromkeys(map(well_formed, made), event.seq))
            case EventKind.TOOL_RESULT:
                _outcome(trace, event, calls.get(event.call_id or ""))
    return trace


def _instruction(trace: Trace, event: Event) -> None:
    part = event.data.get("part")
    if part == "tools":
        return
    trace.instructions.append(event)
    if part == "constraint":
        trace.constraints.setdefault(trace.log.text(event), event.seq)
    elif trace.goal_event is None and part not in ("demo", "skill", "briefing") and is_task(event):
        trace.goal, trace.goal_event = trace.log.text(event), event.seq


def is_task(event: Event) -> bool:
    """Whether an instruction is a user's words, of which the first are the task."""
    return str(event.data.get("role", "user")) not in ("system", "developer")


def _outcome(trace: Trace, event: Event, call: Mapping[str, Any] | None) -> None:
    call_id = well_formed(event.call_id or "")
    trace.pending.pop(call_id, None)
    spelled = "" if call is None else spell_call(call, MAX_CALL)
    trace.outcomes[event.seq] = Outcome(event, call_id, spelled, call)
