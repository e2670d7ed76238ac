"""When a compaction is made, of what, in which order of layers, and at which price."""

import asyncio

from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.compaction.layers import ClearResults, default_layers
from deeproot.runtime.context.compaction.strategies import (
    JOINT,
    NoSummary,
)
from deeproot.runtime.context.compaction.strategy import Proposal, Span, Tools
from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.policies import SlidingWindow
from deeproot.runtime.context.prefix_cost import common_prefix

from .conftest import BUDGET, MakeCompactor, MakeSet, room, shown
from .runs import chatter, shell, start


def test_nothing_happens_below_the_high_mark(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    compactor = make_compactor()
    while (outcome := room(compactor, log)).status is Status.FITS:
        assert outcome.before < Budget(BUDGET).high_tokens
        size = len(log)
        shell(log, size, f"ls {size}", chatter(size))
    assert outcome.status is Status.COMPACTED
    assert outcome.before >= Budget(BUDGET).high_tokens
    assert outcome.after <= Budget(BUDGET).low_tokens


def test_the_check_is_made_before_appending(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set)
    for i in range(8):
        shell(log, i, f"ls {i}", chatter(i))
    before = room(compactor, log)
    assert before.status is Status.FITS
    new = [NewEvent(EventKind.TOOL_RESULT, chatter(99, 600), {"role": "tool"}, "c7")]
    assert before.before + compactor.tokens_of(new) >= Budget(BUDGET).high_tokens
    events, outcome = asyncio.run(compactor.extend(log, new))
    assert outcome.status is Status.COMPACTED
    assert [e.seq for e in events] == [len(log)]
    assert working_set.assemble(log).token_ids.size < Budget(BUDGET).high_tokens


def test_layers_come_in_the_order_of_their_cost(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(20):
        shell(log, i, f"make part{i}", chatter(i, 300))
    compactor = make_compactor(budget=Budget(24_000, low=0.7), layers=default_layers())
    first = room(compactor, log)
    assert first.layers == ("result budget", "cleared results")
    for i in range(20, 50):
        shell(log, i, f"ls {i}", "ok " * 30)
    second = room(compactor, log)
    assert second.layers == ("result budget", "cleared results", "joint: episodes")


def test_cleared_results_spare_the_cached_prefix(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    for i in range(14):
        shell(log, i, f"ls {i}", chatter(i, 120))
    working_set = make_set()
    old = shown(working_set, log)
    outcome = room(
        make_compactor(working_set, NoSummary(), layers=[ClearResults()], budget=Budget(16_000, low=0.7)), log
    )
    assert outcome.status is Status.COMPACTED
    new = shown(working_set, log)
    kept = next(i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b)
    assert "step-1-done" in new[:kept]
    assert "[cleared; the archive has it as" in new[kept - 10 : kept + 200]


def test_episodes_become_phases(make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog) -> None:
    start(log)
    compactor = make_compactor()
    seen = set()
    for i in range(80):
        seen |= set(room(compactor, log).layers)
        shell(log, i, f"ls {i}", chatter(i))
    assert {"joint: episodes", "joint: phases"} <= seen
    levels = [e.data["level"] for e in log.read() if e.data.get("part") == "stand_in"]
    assert levels.count("phase") >= 1
    text = shown(make_set(), log)
    assert text.count("<archived ") == text.count("</archived>") >= 1


def test_what_is_swapped_in_is_priced(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    for i in range(18):
        shell(log, i, f"ls {i}", chatter(i))
    old = make_set().assemble(log).token_ids
    compactor = make_compactor(oracle=TokenCountOracle(tokens_per_second=100))
    cost = room(compactor, log).cost
    new = make_set().assemble(log).token_ids
    assert cost is not None
    assert cost.tokens_recomputed == new.size - common_prefix(old, new) > 0
    assert cost.seconds == cost.tokens_recomputed / 100
    assert room(compactor, log).cost is None  # nothing was swapped


def test_a_window_that_slides_is_compacted_before_it_forgets(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set(SlidingWindow(BUDGET))
    compactor = make_compactor(working_set)
    for i in range(50):
        room(compactor, log)
        shell(log, i, f"ls {i}", chatter(i))
        assert not working_set.assemble(log).report.dropped


def test_two_at_once_swap_one(make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog) -> None:
    """Two hosts on one log: the later one notices and throws its own away."""
    start(log)
    for i in range(16):
        shell(log, i, f"ls {i}", chatter(i))

    class Slow:
        name, unit = "slow", JOINT.unit

        async def propose(self, span: Span, tools: Tools) -> Proposal:
            await asyncio.sleep(0.01)
            return await JOINT.propose(span, tools)

    async def both() -> list[Status]:
        one, other = make_compactor(make_set(), Slow()), make_compactor(make_set(), JOINT)
        outcomes = await asyncio.gather(one.make_room(log), other.make_room(log))
        return [o.status for o in outcomes]

    assert sorted(asyncio.run(both())) == [Status.COMPACTED, Status.OVERTAKEN]
    assert len([e for e in log.read() if e.data.get("part") == "compaction"]) == 1


def test_repeats_of_what_was_compacted_are_shown_in_full(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    output = chatter(1000) + "\nunique-output-77"
    shell(log, 0, "make status", output)
    for i in range(1, 12):
        shell(log, i, f"ls {i}", chatter(i))
    shell(log, 12, "make status", output)
    shell(log, 13, "make status", output)
    working_set = make_set()
    assert shown(working_set, log).count("unique-output-77") == 1
    assert room(make_compactor(working_set), log).status is Status.COMPACTED
    text = shown(working_set, log)
    assert chatter(1000) in text
    assert text.count("unique-output-77") == 2  # in full, and among the facts of the record
    assert text.count("[same output as #31]") == 1  # not #7, which is gone
