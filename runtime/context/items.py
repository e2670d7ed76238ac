"""An event as it will be staged: its final text, its size, and what it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.segments import Authority, Channel, Source, Zone

Part = Literal[
    "policy", "constraint", "tools", "demo", "task", "turn", "assistant", "observation", "artifact", "diagnostic", "state",
    "warning", "reminder", "archived", "status", "status_kept", "skill", "briefing", "record", "tombstone", "other",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a layout can place. Its text never changes once it is made."""

    key: str
    seq: int
    """The event's number; 0 for what the host itself adds."""
    time_ns: int
    kind: EventKind | None
    part: Part
    role: str
    text: str
    fields: Mapping[str, Any]
    """What else the message has: tool calls, name, …"""
    tokens: int
    """Its size with the template's words around it; an upper estimate."""
    authority: Authority
    channel: Channel
    source: Source
    call_id: str | None = None
    call_ids: tuple[str, ...] = ()
    """The calls that an assistant's message makes."""
    failed: bool = False
    """A tool result that says so by its exit code."""
    anchor: bool = False
    """Never summarised or dropped."""
    notes: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    newest: int = 0
    """Of a stand-in for several events, the newest of them."""
    raw_content: Any = None
    """The content as it was imported, where that was no plain string."""


class Placement(NamedTuple):
    """An item in a zone, and why it is there."""

    item: Item
    zone: Zone
    why: str


class Drop(NamedTuple):
    """Something that was left out, and where it can be read."""

    key: str
    seq: int
    tokens: int
    why: str
    payload_hash: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a layout decided. `placements` in the order of the prompt; tool schemas apart, as the API has them."""

    placements: tuple[Placement, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tools_item: Item | None = None
    drops: tuple[Drop, ...] = ()
    notes: tuple[str, ...] = ()
    budget_tokens: int | None = None
    """What the result must not exceed; None: no limit."""
    zone_limits: Mapping[Zone, int] = field(default_factory=dict)
    """What each zone should not exceed; more is reported."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A shorter stand-in for an item, right from event `since` on: a pointer to what replaced a read, say."""

    item: Item
    since: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item that is only a pointer to the same output of event `same_as`.

    `stand_in(n)`: what to stage where that event is not: a pointer to event n, or for its own number all of it.
    """

    same_as: int
    stand_in: Callable[[int], Item]


def no_note(upto: int, shown: Sequence[Item], room: int) -> Item | None:
    """No note of open diagnostics, whatever is open."""
    return None


@dataclass(frozen=True, slots=True)
class PlanContext:
    """What layouts need beside the items. `count`: tokens of a text. `overhead`: of the template around a message.

    `fixed`: tokens of every prompt whatever is placed: tool schemas as the template shows them, the warning that tool
    output is data, the words that ask the model to speak.
    `replacements`: by item key; a layout applies them where it rewrites anyway, since each breaks the prefix.
    """

    count: Callable[[str], int]
    overhead: int
    fixed: int
    replacements: Mapping[str, Replacement]
    repeats: Mapping[str, Repeat]
    """By item key; a layout that leaves out what they point to must stage what stands in."""
    fold: Callable[[Item], Item | None] = lambda item: None
    """A view of a source file as its skeleton, for a layout to stage in its place; None for all else, and where that
    would be no shorter."""
    open_note: Callable[[int, Sequence[Item], int], Item | None] = no_note
    """Diagnostics that were open at event `upto` and are not whole among the items `shown`, in at most `room` tokens,
    for a layout that leaves turns out; None if there are none."""


class LayoutPolicy(Protocol):
    """Chooses and orders. A pure function of the items: the same log gives the same plan, on any machine."""

    @property
    def name(self) -> str:
        """How reports and benchmarks call it."""

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        """Place the items of a log for the next call. Raises `BudgetError` if they cannot fit."""
