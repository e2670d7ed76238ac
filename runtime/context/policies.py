"""The plain layouts: everything, and a sliding window."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.frozen_tools import frozen_tools
from deeproot.runtime.context.grouping import Group, newest_states, root_items, turn_groups
from deeproot.runtime.context.host_items import host_item, status
from deeproot.runtime.context.items import Drop, Item, Placement, Plan, PlanContext
from deeproot.runtime.context.repeats import Repeats
from deeproot.runtime.context.segments import Zone


@dataclass(frozen=True, slots=True)
class AppendOnly:
    """The whole log in its order. `budget` None: no limit; else more than its total is an error."""

    budget: int | None = None

    @property
    def name(self) -> str:
        return "append_only"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        tools, tools_item, notes = frozen_tools(items)
        groups = turn_groups(items)
        placements = place_root(items)
        placements += place_groups(groups, len(groups) - 1)
        placements += place_status(items, context)
        return Plan(tuple(placements), tools, tools_item, notes=notes, budget_tokens=self.budget)


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """The root and the newest turns that fit in `budget` tokens; what slides out is forgotten, anchors too."""

    budget: int

    @property
    def name(self) -> str:
        return "sliding_window"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        tools, tools_item, notes = frozen_tools(items)
        groups = turn_groups(items)
        root = place_root(items)
        tail = place_status(items, context)
        room = self.budget - context.fixed - sum(p.item.tokens for p in (*root, *tail))
        first = len(groups)
        left = room
        while first > 0 and groups[first - 1].tokens <= left:
            first -= 1
            left -= groups[first].tokens
        first = _mended(groups, first, room, context)
        if groups and first == len(groups):
            raise BudgetError(
                f"the newest turn has {groups[-1].tokens} tokens and {max(0, room)} of {self.budget} are left for it;"
                " shorten its tool results or raise the budget"
            )
        drops = tuple(drop for group in groups[:first] for drop in dropped(group, "slid out of the window"))
        turns = place_groups(groups[first:], len(groups) - first - 1)
        placements = [*root, *turns, *place_lost_status(items, turns, context), *tail]
        return Plan(tuple(placements), tools, tools_item, drops, notes, self.budget)


def _mended(groups: Sequence[Group], first: int, room: int, context: PlanContext) -> int:
    """Where the window begins once outputs that slid out are shown where they were only pointed to."""
    while True:
        repeats = Repeats(context, gone={item.seq for group in groups[:first] for item in group.items})
        for group in groups[first:]:
            repeats.mend(group, groups[-1].last_seq)
        if first >= len(groups) or sum(group.tokens for group in groups[first:]) <= room:
            return first
        first += 1


def place_root(items: Sequence[Item]) -> list[Placement]:
    """Policy, constraints and task."""
    why = {
        "policy": "supervisor's policy",
        "constraint": "constraint, verbatim",
        "demo": "demonstration",
        "task": "the user's task",
    }
    return [Placement(item, Zone.ROOT, why.get(item.part, "instruction")) for item in root_items(items)]


def place_groups(groups: Sequence[Group], leaf_from: int) -> list[Placement]:
    """Turns in order; those from index `leaf_from` on are the leaf."""
    placed = []
    for i, group in enumerate(groups):
        zone, why = (Zone.LEAF, "newest turns") if i >= leaf_from else (Zone.TRUNK, "older turn, settled")
        placed += [Placement(item, zone, "anchor" if item.anchor else why) for item in group.items]
    return placed


def place_status(items: Sequence[Item], context: PlanContext) -> list[Placement]:
    """The newest status, unless that stands where it was said, and state readings newer than it, at the tail."""
    newest = _newest_status(items)
    since = newest.seq if newest is not None else 0
    states = [item for item in newest_states(items) if item.seq > since]
    shown = newest if newest is not None and newest.part == "status" else None
    made = status(shown, states, context)
    return [Placement(made, Zone.LEAF, "newest status")] if made else []


def place_lost_status(
    items: Sequence[Item], placed: Sequence[Placement], context: PlanContext
) -> list[Placement]:
    """The newest status once more, where it stood in a turn that is left out of `placed`."""
    newest = _newest_status(items)
    if newest is None or newest.part == "status" or any(one.item.key == newest.key for one in placed):
        return []
    again = host_item("status", newest.text, context, key="status_again")
    return [Placement(again, Zone.LEAF, "newest status, whose turn was left out")]


def _newest_status(items: Sequence[Item]) -> Item | None:
    return next((item for item in reversed(items) if item.part in ("status", "status_kept")), None)


def dropped(group: Group, why: str) -> list[Drop]:
    """What leaving out a group leaves out."""
    return [Drop(item.key, item.seq, item.tokens, why, item.source.payload_hash) for item in group.items]


def as_budget(budget: int | Budget) -> Budget:
    """A number of tokens as a budget with the usual marks and shares."""
    return budget if isinstance(budget, Budget) else Budget(budget)
