"""What the agent writes into the event log beside the conversation, and how far a log says that it came.

Calls with side effects leave an event before they start and one when they have ended, so that after a crash nothing is
done twice blindly; what was read before one of them is kept as it was then. The message that makes them is logged when the reply has ended, and the results, in the order of
the calls, when all are there; so their numbers do not depend on which call was faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deeproot.runtime.agent.outcome import Outcome, facts_of
from deeproot.runtime.agent.stream import Call, Usage
from deeproot.runtime.context import record
from deeproot.runtime.context.calls import calls_of
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import Event, EventKind

RUN, STARTED, ENDED_CALL, RAW, END = "agent_run", "call_started", "call_ended", "raw_output", "agent_end"
NOTICE = "host://notice"


@dataclass(frozen=True, slots=True)
class Message:
    """What the model has said in a reply, so far or in all."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(slots=True)
class Progress:
    """How far a log came. `turns`: messages of the model. `message`: the newest of them, or what is known of a reply that
    was cut off (`cut`), which is not logged yet."""

    turns: int = 0
    message: Message | None = None
    cut: bool = False
    seq: int = 0
    """Event of the message; 0 if it is not logged."""
    started: dict[str, Event] = field(default_factory=dict)
    """By call, of the message's calls."""
    ended: dict[str, Event] = field(default_factory=dict)
    results: dict[str, Event] = field(default_factory=dict)
    end: str = ""
    """Why the run ended; empty: it has not."""
    ids: set[str] = field(default_factory=set)
    """Of all calls ever made."""

    @property
    def open(self) -> bool:
        """Whether calls of the message have no result yet."""
        return self.message is not None and any(call.id not in self.results for call in self.message.calls)


def read_progress(log: EventLog) -> Progress:
    """Read a log to its end."""
    at = Progress()
    newest: Event | None = None
    for event in log.read():
        match event.kind:
            case EventKind.ASSISTANT:
                at.turns += 1
                newest = event
                at.seq, at.message, at.cut, at.end = event.seq, None, False, ""
                at.results = {}
                at.ids.update(calls_of(event))
            case EventKind.TOOL_RESULT if event.call_id is not None:
                at.results[event.call_id] = event
            case EventKind.INSTRUCTION if event.data.get("role") == "user":
                at.end = ""
            case EventKind.STATE_CHANGE:
                _take_state(at, event)
    if newest is not None and not at.cut:
        at.message = _message_of(log, newest)
    return at


def _take_state(at: Progress, event: Event) -> None:
    part = event.data.get("part")
    if part == END:
        at.end = str(event.data.get("why"))
    elif part == STARTED and event.call_id is not None:
        if event.data["turn"] == at.turns + 1:
            said = event.data["message"]
            calls = tuple(Call(*one) for one in said["calls"])
            at.message, at.cut, at.seq = Message(said["text"], said["reasoning"], calls), True, 0
            at.results = {}
            at.ids.update(call.id for call in calls)
        at.started[event.call_id] = event
    elif part == ENDED_CALL and event.call_id is not None:
        at.ended[event.call_id] = event


def started_event(turn: int, call: Call, message: Message, change: Mapping[str, Any] | None) -> NewEvent:
    """Before a call with side effects. `change`: what it is to do to a file, for who has to find out whether it did."""
    said = {
        "text": message.text,
        "reasoning": message.reasoning,
        "calls": [[one.id, one.name, one.arguments] for one in message.calls],
    }
    data = {"part": STARTED, "turn": turn, "message": said, "change": change}
    return NewEvent(EventKind.STATE_CHANGE, data=data, call_id=call.id)


def ended_events(call: Call, outcome: Outcome) -> list[NewEvent]:
    """After a call with side effects; the bytes of binary output go to the archive."""
    data = {"part": ENDED_CALL, "facts": facts_of(outcome)}
    ended = NewEvent(EventKind.STATE_CHANGE, outcome.payload, data, call.id, outcome.exit_code)
    raw = NewEvent(EventKind.STATE_CHANGE, outcome.raw, {"part": RAW}, call.id)
    return [ended, raw] if outcome.raw else [ended]


def message_events(message: Message, usage: Usage | None, ttft_s: float | None) -> list[NewEvent]:
    """The model's message, and what the server counted."""
    calls = [call.as_message() for call in message.calls]
    made = [record.assistant_event(message.text, tool_calls=calls, reasoning=message.reasoning)]
    if usage is not None:
        counted = record.usage_event(
            prompt_tokens=usage.prompt,
            cached_tokens=usage.cached,
            output_tokens=usage.output,
            ttft_s=ttft_s,
        )
        made.append(counted)
    return made


def notice_event(lines: Sequence[str]) -> NewEvent:
    """A word of the host to the model, where it stands."""
    data = {"part": "tombstone", "uri": NOTICE}
    return NewEvent(EventKind.STATE_CHANGE, "\n".join(lines), data)


def end_event(why: str) -> NewEvent:
    return NewEvent(EventKind.STATE_CHANGE, data={"part": END, "why": why})


def run_event(settings: Mapping[str, Any]) -> NewEvent:
    """First event of a run: what a resumed one has to go on with."""
    return NewEvent(EventKind.STATE_CHANGE, data={"part": RUN, "settings": dict(settings)})


def settings_of(log: EventLog) -> Mapping[str, Any] | None:
    """What `run_event` kept; None if the log is no agent's."""
    for event in log.read(1, 2):
        if event.data.get("part") == RUN and isinstance(event.data.get("settings"), Mapping):
            settings: Mapping[str, Any] = event.data["settings"]
            return settings
    return None


def _message_of(log: EventLog, event: Event) -> Message:
    calls = [
        Call(call_id, str(call.get("name", "")), str(call.get("arguments", "")))
        for call_id, call in calls_of(event).items()
    ]
    reasoning = str(event.data.get("message", {}).get("reasoning_content", ""))
    return Message(log.text(event), reasoning, tuple(calls))
