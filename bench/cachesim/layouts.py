"""The layouts that are compared, each as a way to stage an agent's run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from deeproot.runtime.context.anti_patterns import (
    ChangingProfile,
    HistoryAsText,
    ShuffledTools,
    TimestampAtZero,
)
from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.envelope import Defence
from deeproot.runtime.context.invalidation.price import Stakes
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.three_zones import ThreeZones

SHARE = 0.5
"""A budget's high water mark: the fixed part of a run and this share of all its other tokens."""


class Status(StrEnum):
    """What becomes of the readings before each call."""

    REPLACED = "replaced"
    """The newest stand at the tail; the ones before are gone."""
    APPENDED = "appended"
    """Each reading stays where it came."""
    OFF = "off"


class Skills(StrEnum):
    """Where a chosen skill's text goes."""

    APPENDED = "appended"
    """Once, at the tail, where it stays."""
    SYSTEM = "in the system message"
    """Behind the policy, before everything else."""
    FILE = "as a file"
    """Read by a tool, like any other file."""


@dataclass(frozen=True, slots=True)
class Treat:
    """What becomes of observations that no longer hold, by the stakes and prices that `Settler` is given. `refresh`: files
    that the next action needs are read anew."""

    prices: Prices = field(default_factory=Prices)
    stakes: Stakes = field(default_factory=Stakes)
    refresh: bool = False


EVICT = Treat(stakes=Stakes(misread=1.0, misread_tokens=1e9))
"""Never carry what is stale: at these stakes rewriting is always cheaper."""
TOMBSTONES = Treat(prices=Prices(full=1.0, cached=0.0), stakes=Stakes(turns_left=1.0))
"""Never compute a token anew: where reading costs nothing, a line at the tail is always cheaper."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A policy, made for a run's budget and number, and what else its host does.

    `strategy`: with a compactor of that strategy before each append. `treat`: None: stale observations are left as they
    are. `options`: of the `WorkingSet`. `worked_only`: says something only of runs that have what it is about.
    """

    name: str
    policy: Callable[[Budget, int], LayoutPolicy]
    strategy: str | None = None
    treat: Treat | None = None
    status: Status = Status.REPLACED
    skills: Skills = Skills.APPENDED
    keeps_thinking: bool = True
    describes_tools: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    worked_only: bool = False


def _three_zones(budget: Budget, run: int) -> LayoutPolicy:
    return ThreeZones(budget)


def _without_reminder(budget: Budget, run: int) -> LayoutPolicy:
    return ThreeZones(budget, reminder_tokens=0)


THREE_ZONES = Layout("three zones", _three_zones)


def layouts() -> list[Layout]:
    """What is compared, the plain log first."""
    return [
        Layout("append-only log", lambda budget, run: AppendOnly()),
        Layout("timestamp at index 0", lambda budget, run: TimestampAtZero(AppendOnly())),
        Layout("tools shuffled", lambda budget, run: ShuffledTools(AppendOnly(), seed=run)),
        Layout("profile changes each turn", lambda budget, run: ChangingProfile(AppendOnly())),
        Layout("history as text", lambda budget, run: HistoryAsText(AppendOnly())),
        Layout("sliding window", lambda budget, run: SlidingWindow(budget.high_tokens)),
        THREE_ZONES,
        Layout("three zones, no reminder", _without_reminder),
        Layout("three zones + summary", _without_reminder, "joint"),
        Layout("three zones + checkpoint", _without_reminder, "checkpoint"),
        *_worked_layouts(),
    ]


def _worked_layouts() -> list[Layout]:
    """Three zones, and one thing done in another way."""
    base = replace(THREE_ZONES, worked_only=True)
    return [
        replace(base, name="three zones + hard eviction", treat=EVICT),
        replace(base, name="three zones + tombstones", treat=TOMBSTONES),
        replace(base, name="three zones + just-in-time refresh", treat=replace(TOMBSTONES, refresh=True)),
        replace(base, name="three zones + priced choice", treat=Treat()),
        replace(base, name="status appended", status=Status.APPENDED),
        replace(base, name="thinking dropped", keeps_thinking=False),
        replace(base, name="skills in the system message", skills=Skills.SYSTEM),
        replace(base, name="skills as a file", skills=Skills.FILE),
    ]


def ablations() -> list[Layout]:
    """Three zones as it is, and with one part switched off each time."""
    base = THREE_ZONES

    def unfolded(budget: Budget, run: int) -> LayoutPolicy:
        return ThreeZones(budget, fold_over=None)

    def unordered(budget: Budget, run: int) -> LayoutPolicy:
        return ShuffledTools(ThreeZones(budget), seed=run)

    return [
        base,
        Layout("no reminder", _without_reminder),
        replace(base, name="no filters", options={"filters": None}),
        replace(base, name="no extraction", options={"result_tokens": None}),
        Layout("no skeletons", unfolded),
        replace(base, name="no status", status=Status.OFF),
        replace(base, name="no envelopes", options={"defence": Defence.NONE}),
        Layout("tools in no order", unordered),
        replace(base, name="no tool descriptions", describes_tools=False),
    ]
