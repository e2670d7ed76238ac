"""What staging needs of a filter of tool results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from deeproot.runtime.context.events import Event


@dataclass(frozen=True, slots=True)
class Filtered:
    """What became of a tool result. `notes`: one line for each thing that was taken away, and how to read it.

    `shows`: the file that the result is a view of. `same_as`: the event to whose result the text now points.
    """

    text: str
    notes: tuple[str, ...] = ()
    shows: str | None = None
    same_as: int | None = None


@dataclass(frozen=True, slots=True)
class Superseded:
    """Observation `seq` shows what event `since` replaced; `text` is the pointer that may stand for it."""

    seq: int
    since: int
    text: str


class StageFilter(Protocol):
    """Filters the tool results of one log, fed in order; deterministic."""

    def add(self, event: Event, text: str, call: Mapping[str, Any] | None) -> Filtered:
        """The next tool result and the call that it answers (`{"name", "arguments"}`), if known."""

    def take_superseded(self) -> list[Superseded]:
        """What the results added since the last question have superseded."""
