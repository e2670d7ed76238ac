"""Tool calls as Hermes and Qwen models write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

import json
from enum import Enum, auto

from deeproot.runtime.chat.json_scanner import JsonObjectScanner, JsonStatus
from deeproot.runtime.chat.tool_parser import (
    ArgumentsDelta,
    CallEnd,
    CallIds,
    CallStart,
    CallTruncated,
    ContentDelta,
    ToolEvent,
    new_call_id,
)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_SPACE = " \t\r\n"


class _State(Enum):
    TEXT = auto()
    BODY = auto()
    """After the opening mark."""
    CLOSING = auto()
    """After a complete call's JSON."""


class HermesParser:
    """See `ToolParser`.

    A call is reported when it is complete, in one piece of arguments: until then it may still prove malformed, and
    malformed calls are plain text. A call ends with its closing mark, with the next call's opening mark, or with the
    answer. White space between text and a call, between calls, and after the last call belongs to the format and is
    dropped; an answer without calls comes back exactly.
    """

    def __init__(self, call_ids: CallIds = new_call_id) -> None:
        self._call_ids = call_ids
        self._state = _State.TEXT
        self._held = ""
        """In TEXT, what may be the start of a mark, with the white space before it; in CLOSING, what may be its end."""
        self._before = ""
        """White space in front of the opening mark."""
        self._body: list[str] = []
        """The pieces of the call so far, without the opening mark."""
        self._scanner = JsonObjectScanner()
        self._call = ("", "")
        """Name and arguments of the call that is complete but for its closing mark."""
        self._num_calls = 0
        self._just_called = False
        """Whether nothing but white space has come since the last call."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (_OPEN, _CLOSE)

    def feed(self, text: str) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        while text:
            if self._state is _State.TEXT:
                text = self._feed_text(text, events)
            elif self._state is _State.BODY:
                text = self._feed_body(text, events)
            else:
                text = self._feed_closing(text, events)
        return events

    def finish(self) -> list[ToolEvent]:
        events: list[ToolEvent] = []
        if self._state is _State.BODY:
            events.append(CallTruncated())
            self._show(self._before + _OPEN + "".join(self._body), events)
        elif self._state is _State.CLOSING:
            # The JSON is whole, and the answer may well have been cut within the closing mark.
            self._report(events)
            if not _CLOSE.startswith(self._held.strip(_SPACE)):
                self._show(self._held, events)
        elif not self._just_called or self._held.strip(_SPACE):
            self._show(self._held, events)
        self._state, self._held = _State.TEXT, ""
        return events

    def _feed_text(self, text: str, events: list[ToolEvent]) -> str:
        text, self._held = self._held + text, ""
        found = text.find(_OPEN)
        mark = found if found >= 0 else _start_of_partial(text)
        shown = len(text[:mark].rstrip(_SPACE))
        self._show(text[:shown], events)
        if found < 0:
            self._held = text[shown:]
            return ""
        self._state, self._before = _State.BODY, text[shown:mark]
        self._body, self._scanner = [], JsonObjectScanner()
        return text[mark + len(_OPEN) :]

    def _feed_body(self, text: str, events: list[ToolEvent]) -> str:
        end = self._scanner.feed(text)
        self._body.append(text[:end])
        if self._scanner.status is JsonStatus.OPEN:
            return ""
        call = None
        if self._scanner.status is JsonStatus.DONE:
            call = _call_in("".join(self._body), self._scanner)
        if call is None:
            return self._reject(text[end:], events)
        self._state, self._call = _State.CLOSING, call
        return text[end:]

    def _feed_closing(self, text: str, events: list[ToolEvent]) -> str:
        text, self._held = self._held + text, ""
        rest = text.lstrip(_SPACE)
        if rest.startswith((_OPEN, _CLOSE)):
            self._report(events)
            return rest.removeprefix(_CLOSE)
        if _OPEN.startswith(rest) or _CLOSE.startswith(rest):
            self._held = text
            return ""
        return self._reject(text, events)

    def _reject(self, rest: str, events: list[ToolEvent]) -> str:
        """It was no call: its mark is content, and what follows may hold another. Returns what to read again."""
        self._state = _State.TEXT
        self._show(self._before + _OPEN, events)
        return "".join(self._body) + rest

    def _report(self, events: list[ToolEvent]) -> None:
        name, arguments = self._call
        index = self._num_calls
        events += [CallStart(index, self._call_ids(), name), ArgumentsDelta(index, arguments), CallEnd(index)]
        self._num_calls += 1
        self._state, self._just_called = _State.TEXT, True

    def _show(self, text: str, events: list[ToolEvent]) -> None:
        if text:
            events.append(ContentDelta(text))
            self._just_called = False


def _call_in(body: str, scanner: JsonObjectScanner) -> tuple[str, str] | None:
    """Name and arguments of a call, or None if the object is none."""
    members = {
        json.loads(body[key_start:key_end]): body[value_start:value_end]
        for key_start, key_end, value_start, value_end in scanner.spans
    }
    arguments = members.get("arguments", "{}")
    raw_name = members.get("name", "")
    if not raw_name.startswith('"') or not arguments.startswith("{"):
        return None
    name: str = json.loads(raw_name)
    # Half of a surrogate pair cannot be sent to anybody.
    return (name, arguments) if name and name.isprintable() else None


def _start_of_partial(text: str) -> int:
    """Where the longest end of `text` that begins the opening mark starts; `len(text)` if there is none."""
    for size in range(min(len(_OPEN) - 1, len(text)), 0, -1):
        if text.endswith(_OPEN[:size]):
            return len(text) - size
    return len(text)
