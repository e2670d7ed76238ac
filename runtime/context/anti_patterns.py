"""Layouts that break the prefix, as agents do in the wild; benchmarks need them beside the good ones."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deeproot.runtime.context.envelope import iso_time
from deeproot.runtime.context.host_items import host_item
from deeproot.runtime.context.items import Item, LayoutPolicy, Placement, Plan, PlanContext
from deeproot.runtime.context.segments import Zone


@dataclass(frozen=True, slots=True)
class TimestampAtZero:
    """The time of the newest event stands before everything else."""

    inner: LayoutPolicy

    @property
    def name(self) -> str:
        return f"timestamp_at_0({self.inner.name})"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        plan = self.inner.plan(items, context)
        text = f"Current time: {iso_time(max((item.time_ns for item in items), default=0))}"
        return _at_the_front(plan, host_item("other", text, context, key="timestamp", role="system"))


@dataclass(frozen=True, slots=True)
class ChangingProfile:
    """A user profile in the system message that is rewritten each turn."""

    inner: LayoutPolicy

    @property
    def name(self) -> str:
        return f"changing_profile({self.inner.name})"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        plan = self.inner.plan(items, context)
        text = f"User profile: {turn_number(items)} turns so far, last active {iso_time(items[-1].time_ns) if items else ''}"
        return _at_the_front(plan, host_item("other", text, context, key="profile", role="system"))


@dataclass(frozen=True, slots=True)
class ShuffledTools:
    """Tool schemas in an order of their own each turn, as from an unordered mapping. `seed` makes it repeatable."""

    inner: LayoutPolicy
    seed: int = 0

    @property
    def name(self) -> str:
        return f"shuffled_tools({self.inner.name})"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        plan = self.inner.plan(items, context)
        tools = list(plan.tools)
        random.Random(f"{self.seed}:{turn_number(items)}").shuffle(tools)
        return replace(plan, tools=tuple(tools))


@dataclass(frozen=True, slots=True)
class HistoryAsText:
    """The turns as one user message of plain text, written anew each turn, without envelopes of its own."""

    inner: LayoutPolicy

    @property
    def name(self) -> str:
        return f"history_as_text({self.inner.name})"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        plan = self.inner.plan(items, context)
        root = [placed for placed in plan.placements if placed.zone is Zone.ROOT]
        turns = [placed.item for placed in plan.placements if placed.zone is not Zone.ROOT]
        if not turns:
            return plan
        text = "Conversation so far:\n" + "\n".join(_spelled(item) for item in turns)
        history = Placement(host_item("other", text, context, key="history"), Zone.LEAF, "history as text")
        return replace(plan, placements=(*root, history))


def turn_number(items: Sequence[Item]) -> int:
    """How many messages the model has written."""
    return sum(item.part == "assistant" for item in items)


def _at_the_front(plan: Plan, item: Item) -> Plan:
    placed = Placement(item, Zone.ROOT, "volatile text at index 0")
    return replace(plan, placements=(placed, *plan.placements))


def _spelled(item: Item) -> str:
    calls = item.fields.get("tool_calls")
    made = f" {json.dumps(calls, ensure_ascii=False)}" if calls else ""
    return f"{item.role.capitalize()}: {item.text}{made}"
