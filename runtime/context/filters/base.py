"""What a filter is: text in, text out, and an account of every line that it took away."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from deeproot.runtime.context.filters.observation import ObservationLog


@dataclass(frozen=True, slots=True)
class Drop:
    """Lines first to last of a filter's input (from 1, both included) became `kept` lines of its output."""

    kind: str
    """What was dropped: "redrawn", "http headers", "repeated output", "unchanged lines", "superseded read"."""
    first: int
    last: int
    kept: int
    count: int = 1
    """How many things of the kind the range holds."""

    @property
    def lines(self) -> int:
        """How many lines of the input the drop covers."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Lines outside of every drop stand unchanged and in order, but for `invisible` ones."""

    text: str
    drops: tuple[Drop, ...] = ()
    invisible: int = 0
    """Characters that a terminal shows as nothing (colours, returns before a line feed), taken away in place."""
    exempt: bool = False
    """The text is now a pointer to the same content or to what replaced it, so nothing has to be retained."""
    same_as: int | None = None
    """The observation that the text now points to for its own content, by its number in the event log."""


@dataclass(frozen=True, slots=True)
class FilterContext:
    """Where the text comes from. Filters that look at one text only need none of it."""

    log: ObservationLog = field(default_factory=ObservationLog)
    index: int | None = None
    """Which observation of the log the text is; None: it stands alone."""


class Filter(Protocol):
    """One stage. Deterministic, never raises on any text, keeps all that `retention.facts` finds."""

    @property
    def name(self) -> str:
        """How reports call the stage."""
        ...

    def apply(self, text: str, ctx: FilterContext) -> FilterResult:
        """Filter one text."""
        ...


def input_lines(drops: Sequence[Drop], line: int) -> tuple[int, int]:
    """Which input lines (from 1, both included) stand behind line `line` of the output.

    `drops`: of one filter, in order. A line of a drop's stand-in gives the drop's whole range.
    """
    shift = 0
    for drop in drops:
        start = drop.first + shift
        if line < start:
            break
        if line < start + drop.kept:
            return drop.first, drop.last
        shift += drop.kept - drop.lines
    return line - shift, line - shift


def original_lines(stages: Sequence[Sequence[Drop]], line: int) -> tuple[int, int]:
    """Which lines of the archived original stand behind line `line` of a pipeline's output.

    `stages`: the drops of each stage, first stage first.
    """
    first = last = line
    for drops in reversed(stages):
        first, last = input_lines(drops, first)[0], input_lines(drops, last)[1]
    return first, last
