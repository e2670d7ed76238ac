"""Turns of a log as compaction reads them: what was said, what was called, what came back."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.calls import arguments_of, calls_of
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind, payload_text


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call and its result. `seq`: the result's event, or the message's while there is none."""

    seq: int
    name: str
    command: str
    """The shell command, or the arguments as they were written."""
    shell: bool
    """Whether `command` is a line for a shell, and not the arguments of a tool."""
    result: str | None
    """As it was staged: filtered, but whole. None: not answered."""
    exit_code: int | None

    def title(self) -> str:
        """The call on one line."""
        line = " ".join(self.command.split())
        return line if self.shell else f"{self.name}({line})"


@dataclass(frozen=True, slots=True)
class Turn:
    """One assistant message with its calls, or other events that came between (`said` empty). `seq`: the first event."""

    seq: int
    said: str
    calls: tuple[Call, ...]


class TurnReader:
    """Reads turns out of a log. `result_text`: what an event of a tool result shows, filtered, pointers followed; None
    where the payload itself is to be read."""

    def __init__(self, log: EventLog, result_text: Callable[[int], str | None]) -> None:
        self._log = log
        self._result_text = result_text

    def turns(self, seqs: Sequence[int]) -> list[Turn]:
        """The turns that events `seqs` (ascending) make."""
        events = self._events(seqs)
        results = {e.call_id: e for e in events if e.kind is EventKind.TOOL_RESULT and e.call_id is not None}
        made: list[Turn] = []
        answered: set[int] = set()
        for event in events:
            if event.kind is EventKind.ASSISTANT:
                calls = [self._call(event, i, call, results) for i, call in calls_of(event).items()]
                answered |= {call.seq for call in calls}
                made.append(Turn(event.seq, payload_text(self._log.payload(event)), tuple(calls)))
        for event in events:
            if event.kind in (EventKind.TOOL_RESULT, EventKind.DIAGNOSTIC) and event.seq not in answered:
                name = str(event.data.get("message", {}).get("name") or event.data.get("uri") or "tool")
                call = Call(event.seq, name, "", False, self._text(event), event.exit_code)
                made.append(Turn(event.seq, "", (call,)))
        return sorted(made, key=lambda turn: turn.seq)

    def _events(self, seqs: Sequence[int]) -> list[Event]:
        wanted = set(seqs)
        return (
            [event for event in self._log.read(seqs[0], seqs[-1] + 1) if event.seq in wanted] if seqs else []
        )

    def _call(self, said: Event, call_id: str, call: Mapping[str, Any], results: Mapping[str, Event]) -> Call:
        found = results.get(call_id)
        name, (command, shell) = str(call.get("name", "")), command_of(call)
        if found is None:
            return Call(said.seq, name, command, shell, None, None)
        return Call(found.seq, name, command, shell, self._text(found), found.exit_code)

    def _text(self, event: Event) -> str:
        text = self._result_text(event.seq)
        return payload_text(self._log.payload(event)) if text is None else text


def command_of(call: Mapping[str, Any]) -> tuple[str, bool]:
    """What a call runs, and whether that is a line for a shell: its command, else its arguments as they were written."""
    arguments = call.get("arguments", "")
    if call.get("name") == "shell" and isinstance(arguments, str) and not arguments.lstrip().startswith("{"):
        return arguments.strip(), True
    given = arguments_of(call)
    if isinstance(given, Mapping):
        for key in ("command", "cmd", "script"):
            if isinstance(given.get(key), str):
                return given[key].strip(), True
    return arguments if isinstance(arguments, str) else json.dumps(arguments), False


def all_calls(turns: Iterable[Turn]) -> list[Call]:
    """The calls of some turns, in their order."""
    return [call for turn in turns for call in turn.calls]
