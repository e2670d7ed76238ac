"""Edits by line number whose lines were last shown before an earlier change moved them: found before they are made."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.calls import calls_of
from deeproot.runtime.context.event_actions import EventActions
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import Event, EventKind

_EDIT = re.compile(r"^edit\s+(\d+):(\d+)\s*$", re.M)
_NUMBERED = re.compile(r"^(\d+):", re.M)
_TOTAL = re.compile(r"^\[File: \S+ \((\d+) lines total\)\]", re.M)
_REFUSED = "This is the original code before your edit"
_WOULD_BE = re.compile(
    r"^This is how your edit would have looked if applied$.*?(?=^This is the original code)", re.M | re.S
)
"""Of SWE-agent: lines of an edit that was not made."""


@dataclass(frozen=True, slots=True)
class RangeEdit:
    """An edit of lines `first` to `last` of `path`, made by event `seq`.

    `shown`: for the line of the range that was shown longest ago, the event that showed it; None if one never was.
    `moved_by`: the first edit after that which changed how many lines stand above the range, or rewrote some of it.
    """

    seq: int
    path: str
    first: int
    last: int
    shown: int | None
    moved_by: int | None

    @property
    def stale(self) -> bool:
        """Whether its numbers are of a file that no longer is."""
        return self.moved_by is not None


class LineHistory:
    """Which lines of one file were shown when, and which edits moved lines after that."""

    def __init__(self) -> None:
        self._shown: dict[int, int] = {}
        self._edits: list[tuple[int, int, int, int]] = []

    def show(self, seq: int, lines: range | list[int]) -> None:
        """Event `seq` showed these lines."""
        self._shown.update(dict.fromkeys(lines, seq))

    def edit(self, seq: int, first: int, last: int, grown: int) -> None:
        """Event `seq` replaced lines `first` to `last`; the file is `grown` lines longer (shorter if negative)."""
        self._edits.append((seq, first, last, grown))

    def check(self, seq: int, path: str, first: int, last: int) -> RangeEdit:
        """What an edit of this range by event `seq` would rest on, had it been asked for now."""
        lines = range(first, last + 1)
        seen = [self._shown.get(line) for line in lines]
        moved = (
            self._moved_by(line, since) for line, since in zip(lines, seen, strict=True) if since is not None
        )
        return RangeEdit(
            seq,
            path,
            first,
            last,
            shown=None if None in seen else min((s for s in seen if s is not None), default=None),
            moved_by=min((made for made in moved if made is not None), default=None),
        )

    def _moved_by(self, line: int, since: int) -> int | None:
        """The first edit after event `since` from which on another text may stand on that line."""
        for made, first, last, grown in self._edits:
            if made > since and first <= line and (grown != 0 or line <= last):
                return made
        return None


def range_edits(log: EventLog) -> list[RangeEdit]:
    """Every edit by line range in a SWE-agent log (`edit 12:15`), judged by what came before it, not by its result."""
    actions = EventActions()
    files: dict[str, LineHistory] = {}
    totals: dict[str, int] = {}
    calls: dict[str, tuple[int, Mapping[str, Any]]] = {}
    open_file: str | None = None
    found: list[RangeEdit] = []
    for event in log.read():
        if event.kind is EventKind.ASSISTANT:
            calls.update({call_id: (event.seq, call) for call_id, call in calls_of(event).items()})
            edit = _edit_of(event)
            if edit is not None and open_file is not None:
                history = files.setdefault(open_file, LineHistory())
                found.append(history.check(event.seq, open_file, *edit))
        elif event.kind is EventKind.TOOL_RESULT:
            made_by, call = calls.get(event.call_id or "", (event.seq, {}))
            text = _WOULD_BE.sub("", log.text(event))
            action = actions.read(event, log.text(event), call)
            path = open_file if action.shows is None and _REFUSED in text else action.shows
            if path is None:
                continue
            open_file = path
            history = files.setdefault(path, LineHistory())
            total = int(said[1]) if (said := _TOTAL.search(text)) else totals.get(path, 0)
            edit = _edit_of(event)
            if path in action.changes and edit is not None:
                history.edit(made_by, *edit, total - totals.get(path, total))
            totals[path] = total
            history.show(event.seq, [int(number) for number in _NUMBERED.findall(text)])
    return found


def _edit_of(event: Event) -> tuple[int, int] | None:
    """The line range that a step of SWE-agent edits."""
    action = event.data.get("action", event.data.get("step", {}).get("action"))
    match = _EDIT.match(action) if isinstance(action, str) else None
    return (int(match[1]), int(match[2])) if match else None
