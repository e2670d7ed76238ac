"""Policies beside each other: a window that forgets, anti-patterns, and what broke a prefix."""

from collections.abc import Sequence

import pytest

from deeproot.runtime.context.anti_patterns import (
    ChangingProfile,
    HistoryAsText,
    ShuffledTools,
    TimestampAtZero,
)
from deeproot.runtime.context.budget import BudgetError
from deeproot.runtime.context.compare import prefix_break
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.prefix_cost import common_prefix, prefix_cost
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.three_zones import ThreeZones

from .layouts import Assemble, start, turn


def calls_of(log: EventLog) -> list[int]:
    """After which events the model was called: all that are not its own messages, from the task on."""
    return [e.seq for e in log.read() if e.kind is EventKind.TOOL_RESULT]


def test_a_sliding_window_forgets(assemble: Assemble, log: EventLog) -> None:
    start(log)
    turn(log, 0, exit_code=1)
    for i in range(1, 30):
        turn(log, i)
    context = assemble(SlidingWindow(2000), log)
    assert context.token_ids.size <= 2000
    assert "e6" in {d.key for d in context.report.dropped}
    assert "archived" not in {s.key for s in context.segments}
    turn(log, 31, 900)
    with pytest.raises(BudgetError, match="the newest turn has"):
        assemble(SlidingWindow(1000), log)


def hits(log: EventLog, policy: LayoutPolicy, assemble: Assemble) -> float:
    contexts = [assemble(policy, log, upto=seq) for seq in calls_of(log)]
    return prefix_cost([c.token_ids for c in contexts]).hit_rate


def test_anti_patterns_break_the_prefix_where_they_say(assemble: Assemble, log: EventLog) -> None:
    start(log)
    for i in range(8):
        turn(log, i)
    good = AppendOnly()
    rates = {
        p.name: hits(log, p, assemble)
        for p in (
            good,
            TimestampAtZero(good),
            ShuffledTools(good),
            ChangingProfile(good),
            HistoryAsText(good),
        )
    }
    assert rates["append_only"] > 0.75
    assert rates["timestamp_at_0(append_only)"] < 0.05
    assert rates["changing_profile(append_only)"] < 0.05
    assert 0.02 < rates["shuffled_tools(append_only)"] < 0.6
    text = assemble(HistoryAsText(good), log)
    assert [m["role"] for m in text.messages] == ["system", "user"]
    assert "Tool: " in text.messages[1]["content"]
    assert (
        rates["append_only"] > rates["history_as_text(append_only)"]
        or rates["history_as_text(append_only)"] > 0.5
    )


@pytest.mark.parametrize(
    ("policy", "key", "cause"),
    [
        (TimestampAtZero(AppendOnly()), "timestamp", "timestamp"),
        (ChangingProfile(AppendOnly()), "profile", "counter"),
        (ShuffledTools(AppendOnly()), "e3", "tool order"),
    ],
)
def test_what_broke_the_prefix_is_named_and_priced(
    policy: LayoutPolicy, key: str, cause: str, assemble: Assemble, log: EventLog
) -> None:
    start(log)
    turn(log, 0)
    before = assemble(policy, log)
    turn(log, 1)
    after = assemble(policy, log)
    found = prefix_break(before, after)
    assert found is not None
    assert (found.key, found.zone, found.cause) == (key, Zone.ROOT, cause)
    shared = common_prefix(before.token_ids, after.token_ids)
    assert (found.token, found.cost_tokens) == (shared, before.token_ids.size - shared)
    good = AppendOnly()
    assert prefix_break(assemble(good, log, upto=6), assemble(good, log)) is None
    assert prefix_break(after, after) is None


def test_policies_are_repeatable(assemble: Assemble, log: EventLog) -> None:
    start(log)
    for i in range(5):
        turn(log, i)
    policies: Sequence[LayoutPolicy] = (
        ShuffledTools(AppendOnly(), seed=3),
        TimestampAtZero(ThreeZones(5000)),
        ChangingProfile(AppendOnly()),
    )
    for policy in policies:
        assert assemble(policy, log).token_ids.tobytes() == assemble(policy, log).token_ids.tobytes()
