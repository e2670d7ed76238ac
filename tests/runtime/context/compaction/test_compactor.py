"""Water marks, cut points, replay, the breaker: what compaction promises whatever the strategy."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.compaction.breaker import rearm
from deeproot.runtime.context.compaction.checkpointing import StructuredCheckpoint
from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.compaction.layers import ClearResults, default_layers
from deeproot.runtime.context.compaction.strategies import (
    CITED,
    JOINT,
    PER_RESULT,
    QUERY_AWARE,
    WINDOWED,
    NoSummary,
)
from deeproot.runtime.context.compaction.strategy import Strategy
from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.jsonl import export_lines, import_lines
from deeproot.runtime.context.policies import SlidingWindow
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.working_set import Context

from .conftest import BUDGET, MakeCompactor, MakeSet, room, shown
from .runs import CONSTRAINTS, chatter, shell, start

OFFLINE = [PER_RESULT, JOINT, QUERY_AWARE, CITED, WINDOWED, StructuredCheckpoint()]


def whole_exchanges(context: Context) -> bool:
    """Every tool message follows its call, every call has its result."""
    waiting: set[str] = set()
    for message in context.messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.discard(message["tool_call_id"])
        elif waiting:
            return False
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
    return not waiting


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


@pytest.mark.parametrize(
    ("strategy", "zones"),
    [*((s, True) for s in OFFLINE), (JOINT, False)],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_a_long_run_stays_between_the_marks(
    strategy: Strategy, zones: bool, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set(ThreeZones(BUDGET) if zones else None)
    compactor = make_compactor(working_set, strategy)
    batches = 0
    for i in range(40):
        outcome = room(compactor, log, incoming=1200)
        batches += outcome.status is Status.COMPACTED
        assert outcome.status in (Status.FITS, Status.COMPACTED), outcome
        shell(log, i, f"ls {i}", chatter(i))
        context = working_set.assemble(log)
        assert context.token_ids.size < BUDGET
        assert whole_exchanges(context)
        assert not [drop for drop in context.report.dropped if drop.why.startswith("archived")]
    assert batches == compactor.compactions(log)
    assert 2 <= batches <= 9
    assert all(constraint in shown(working_set, log) for constraint in CONSTRAINTS)


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


def test_replay_and_restart_give_the_same_bytes(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    """Every call of a run, made again from a copy of the log by a working set that knows nothing of compaction."""
    start(log)
    working_set = make_set(ThreeZones(BUDGET))
    compactor = make_compactor(working_set)
    calls = []
    for i in range(30):
        room(compactor, log)
        shell(log, i, f"ls {i % 7}", chatter(i % 7), exit_code=i % 5)
        context = working_set.assemble(log)
        calls.append((len(log), context.token_ids.tolist(), context.messages))
    copy = EventLog.memory()
    import_lines(copy, export_lines(log))
    fresh = make_set(ThreeZones(BUDGET))
    for upto, ids, messages in calls:
        again = fresh.assemble(copy, upto=upto)
        assert again.messages == messages
        assert again.token_ids.tolist() == ids


def test_between_compactions_each_call_extends_the_last(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set)
    last: Sequence[object] = ()
    for i in range(40):
        compacted = room(compactor, log).swapped
        shell(log, i, f"ls {i}", chatter(i))
        messages = working_set.assemble(log).messages
        if not compacted:
            assert messages[: len(last)] == tuple(last)
        last = messages


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


@pytest.mark.parametrize("strategy", OFFLINE, ids=lambda s: s.name)
def test_anchors_and_users_words_stay_as_they_were(
    strategy: Strategy, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    shell(log, 0, "pytest -q", "FAILED tests/test_auth.py::test_jwt - assert 401 == 200\n1 failed", 1)
    shell(log, 1, "pytest -q", "1 passed")
    record.user(log, "Use port 5433 and the staging key, please.")
    call = {
        "id": "d",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "git diff"}'},
    }
    record.assistant(log, "The accepted change.", tool_calls=[call])
    log.append(
        EventKind.TOOL_RESULT,
        "diff --git a/x b/x\n-1\n+2",
        data={"role": "tool", "anchor": True},
        call_id="d",
        exit_code=0,
    )
    compactor = make_compactor(strategy=strategy)
    for i in range(2, 36):
        room(compactor, log)
        shell(log, i, f"ls {i}", chatter(i))
    assert compactor.compactions(log) >= 2
    text = shown(make_set(), log)
    assert "FAILED tests/test_auth.py::test_jwt - assert 401 == 200\n1 failed" in text
    assert "Use port 5433 and the staging key, please." in text
    assert "diff --git a/x b/x\n-1\n+2" in text


def test_fixed_overhead_over_the_mark_is_an_error_at_once(
    make_compactor: MakeCompactor, log: EventLog
) -> None:
    record.policy(log, "rules " * 4000)
    record.user(log, "Go.")
    size = len(log)
    with pytest.raises(BudgetError, match="reach the high water mark"):
        room(make_compactor(), log)
    assert len(log) == size  # nothing was tried


def test_the_breaker_opens_says_so_and_closes_again(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(19):
        record.user(log, f"Remember {i}: {chatter(i)}")  # a user's words are never summarised
    compactor = make_compactor()
    outcomes = [room(compactor, log) for _ in range(5)]
    assert [o.status for o in outcomes] == [Status.USELESS] * 3 + [Status.OPEN] * 2
    assert "the last 3 compactions freed less than 10% each" in outcomes[-1].message
    assert not any(o.swapped for o in outcomes)
    # A restart does not close it.
    assert room(make_compactor(), log).status is Status.OPEN
    # It closes when there is something to free: first half open, then, after a useful one, for good.
    for i in range(20):
        shell(log, i, f"ls {i}", chatter(i))
    assert room(compactor, log).status is Status.COMPACTED
    tried = []
    for i in range(20, 60):
        tried.append(room(compactor, log).status)
        shell(log, i, f"ls {i}", chatter(i))
    assert Status.COMPACTED in tried


def test_the_breaker_is_closed_by_hand(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(19):
        record.user(log, f"Remember {i}: {chatter(i)}")
    compactor = make_compactor()
    for _ in range(3):
        room(compactor, log)
    assert room(compactor, log).status is Status.OPEN
    rearm(log)
    assert room(compactor, log).status is Status.USELESS


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

        async def propose(self, span: object, tools: object) -> object:
            await asyncio.sleep(0.01)
            return await JOINT.propose(span, tools)  # type: ignore[arg-type]

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


turns = st.lists(
    st.tuples(
        st.sampled_from(["shell", "user", "parallel", "late", "file"]),
        st.integers(0, 5),
        st.sampled_from([None, 0, 1]),
        st.integers(1, 120),
    ),
    min_size=8,
    max_size=40,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=turns, strategy=st.sampled_from(OFFLINE), clear=st.booleans())
def test_any_run_keeps_its_promises(
    run: list[tuple[str, int, int | None, int]],
    strategy: Strategy,
    clear: bool,
    make_compactor: MakeCompactor,
    make_set: MakeSet,
) -> None:
    """Pairs whole, instructions there, never longer, replay equal: for runs with parallel and late results."""
    log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set, strategy, layers=default_layers() if clear else None)
    said = []
    for i, (kind, n, code, words) in enumerate(run):
        outcome = room(compactor, log)
        assert outcome.after <= outcome.before
        if kind == "user":
            said.append(f"wish {i} {chatter(i, words)}")
            record.user(log, said[-1])
        elif kind == "file":
            record.file_version(log, f"src/f{n}.py", f"x = {i}\n" * words)
        elif kind == "shell":
            shell(log, i, f"run {n}", chatter(n, words), code)
        else:
            ids = [f"c{i}.{k}" for k in range(3)]
            function = {"name": "bash", "arguments": json.dumps({"command": f"run {n}"})}
            record.assistant(
                log, "", tool_calls=[{"id": c, "type": "function", "function": function} for c in ids]
            )
            for call_id in reversed(ids) if kind == "late" else ids:
                record.tool_result(log, call_id, chatter(n, words), name="bash", exit_code=code)
    context = working_set.assemble(log)
    assert whole_exchanges(context)
    text = "\n".join(str(m["content"]) for m in context.messages)
    assert all(constraint in text for constraint in CONSTRAINTS)
    assert all(wish in text for wish in said)
    copy = EventLog.memory()
    import_lines(copy, export_lines(log))
    assert make_set().assemble(copy).messages == context.messages
