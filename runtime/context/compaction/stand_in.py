"""What stands in the prompt for events that were compacted: made once, frozen in the log, the same bytes for ever."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deeproot.runtime.context.event_log import EventLogError, NewEvent
from deeproot.runtime.context.events import Event, EventKind

PART = "stand_in"


class Level(StrEnum):
    """How much a stand-in takes away, from least to most."""

    SHORTENED = "shortened"
    """One message: a stale view as a pointer, a source as its skeleton, a long result as a preview."""
    CLEARED = "cleared"
    """One tool result: a pointer to the archive, and its open diagnostics."""
    EVICTED = "evicted"
    """An observation that no longer holds, with the call that asked for it: nothing stands for them."""
    SUMMARY = "summary"
    """One tool result: a summary of it."""
    EPISODE = "episode"
    """A run of turns: one record."""
    PHASE = "phase"
    """Several episodes: one record."""
    CHECKPOINT = "checkpoint"
    """Everything before the newest turns: the state that was reached."""

    @property
    def in_place(self) -> bool:
        """Whether the message stays where it is, with other words."""
        return self in (Level.SHORTENED, Level.CLEARED, Level.SUMMARY)


@dataclass(frozen=True, slots=True)
class StandIn:
    """`text` in the place of events `covers` (numbers, ascending). `by`: the layer or strategy that made it.

    In place, the text is the message's whole content, envelope included; of a record, what stands in its frame.
    """

    level: Level
    covers: tuple[int, ...]
    text: str
    by: str

    def __post_init__(self) -> None:
        if not self.covers or list(self.covers) != sorted(set(self.covers)) or self.covers[0] < 1:
            raise ValueError(f"covers is {self.covers}; give event numbers, ascending, at least one")
        if self.level.in_place and len(self.covers) != 1:
            raise ValueError(f"a {self.level} stand-in covers one event, not {len(self.covers)}")

    def to_event(self) -> NewEvent:
        """As the log keeps it."""
        data = {
            "part": PART,
            "level": self.level.value,
            "covers": as_ranges(self.covers),
            "by": self.by,
        }
        return NewEvent(EventKind.STATE_CHANGE, self.text, data)


def is_stand_in(event: Event) -> bool:
    """Whether the event is a stand-in."""
    return event.kind is EventKind.STATE_CHANGE and event.data.get("part") == PART


def read_stand_in(event: Event, text: str) -> StandIn:
    """The stand-in that an event of the log is. Raises `EventLogError` naming what is wrong with it."""
    data = event.data
    covers = _from_ranges(data.get("covers"))
    if covers is None or covers[-1] >= event.seq:
        raise EventLogError(
            f"event {event.seq}: covers is {data.get('covers')!r}; a stand-in has [[first, last], …] of events before it"
        )
    try:
        return StandIn(Level(str(data.get("level"))), covers, text, str(data.get("by", "")))
    except ValueError as error:
        raise EventLogError(f"event {event.seq}: {error}") from None


def as_ranges(numbers: Sequence[int]) -> list[list[int]]:
    """Ascending numbers as [[first, last], …]."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges


def _from_ranges(ranges: Any) -> tuple[int, ...] | None:
    if not isinstance(ranges, list) or not ranges:
        return None
    numbers: list[int] = []
    for pair in ranges:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(n) is int for n in pair):
            return None
        first, last = pair
        if not (numbers[-1] if numbers else 0) < first <= last < first + 10_000_000:
            return None
        numbers += range(first, last + 1)
    return tuple(numbers)
