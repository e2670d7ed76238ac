"""What a run has done so far, read off its log: the source of every reading."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.branches.report import CALLS as BRANCH_CALLS
from deeproot.runtime.context.calls import arguments_of, calls_of, spell_call
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind
from deeproot.runtime.context.status.todo import PART as LIST
from deeproot.runtime.context.status.todo import Todo, read_todo

PART = "status"
"""Of the events that hold a status."""
_HEAD = 2000
"""Characters of an output that readings look at."""
_SPELLED = 400


@dataclass(frozen=True, slots=True)
class MadeCall:
    """One call that was answered, by a sub-agent perhaps. `seq`: the event of its result; `spelled`: name and arguments on
    one line; empty for a sub-agent's, of which only name and arguments are known."""

    seq: int
    name: str
    arguments: Any
    spelled: str
    exit_code: int | None
    output: str
    """Its first 2,000 characters."""
    seconds: float | None
    """How long it took, as the host logged it, else from the message that made it to the result."""

    @property
    def failed(self) -> bool:
        return self.exit_code not in (None, 0)


class RunHistory:
    """Follows one log; `read` takes in what is new."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.calls: list[MadeCall] = []
        self.counts: Counter[str] = Counter()
        """Answered calls of each tool."""
        self.states: dict[str, str] = {}
        """The newest reading of each name."""
        self.todo: tuple[Todo, ...] = ()
        self.first_ns: int | None = None
        self.last_ns = 0
        """When the newest event that is no status came."""
        self.user_ns: int | None = None
        """When the user last spoke."""
        self.status = ""
        """The newest status, and the mode it was logged in."""
        self.status_mode = ""
        self.statuses = 0
        self.replies_at_status = 0
        self.replies: list[int] = []
        """Characters of each of the model's messages, calls included."""
        self._open: dict[str, tuple[int, Mapping[str, Any]]] = {}
        self._read = 0

    def read(self) -> None:
        """Take in the events that came since."""
        for event in self.log.read(self._read + 1):
            self._read = event.seq
            if self.first_ns is None:
                self.first_ns = event.time_ns
            if event.data.get("part") != PART:
                self.last_ns = event.time_ns
            match event.kind:
                case EventKind.INSTRUCTION:
                    if event.data.get("role") == "user" and "part" not in event.data:
                        self.user_ns = event.time_ns
                case EventKind.ASSISTANT:
                    calls = calls_of(event)
                    self._open.update({call_id: (event.time_ns, call) for call_id, call in calls.items()})
                    self.replies.append(event.payload_size + sum(len(str(call)) for call in calls.values()))
                case EventKind.TOOL_RESULT:
                    self._result(event)
                case EventKind.STATE_CHANGE:
                    self._state(event)

    def _result(self, event: Event) -> None:
        for made in event.data.get(BRANCH_CALLS, ()):
            self._add(MadeCall(event.seq, str(made["name"]), arguments_of(made), "", None, "", None))
        since, call = self._open.pop(event.call_id or "", (None, {}))
        name = str(call.get("name") or event.data.get("message", {}).get("name") or "")
        seconds = event.data.get("seconds")
        if not isinstance(seconds, (int, float)):
            seconds = None if since is None else (event.time_ns - since) / 1e9
        made = MadeCall(
            event.seq,
            name,
            arguments_of(call),
            spell_call(call, _SPELLED) if call else name,
            event.exit_code,
            self.log.text(event)[:_HEAD],
            seconds,
        )
        self._add(made)

    def _add(self, made: MadeCall) -> None:
        self.calls.append(made)
        if made.name:
            self.counts[made.name] += 1

    def _state(self, event: Event) -> None:
        part = event.data.get("part")
        if part == LIST:
            self.todo = read_todo(self.log.text(event))
        elif part == PART:
            self.status, self.status_mode = self.log.text(event), str(event.data.get("mode", ""))
            self.statuses += 1
            self.replies_at_status = len(self.replies)
        elif "name" in event.data:
            self.states[str(event.data["name"])] = self.log.text(event)
