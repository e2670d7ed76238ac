"""Budgets, zones, order and batches of the layout in three zones."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context

from .agent_turns import whole_exchanges
from .layouts import Assemble, start, turn


def test_shares_and_marks_are_checked() -> None:
    budget = Budget(24_000)
    assert (budget.high_tokens, budget.low_tokens) == (19_200, 12_000)
    assert [budget.zone_limit(zone) for zone in Zone] == [4800, 16_800, 7200]
    for bad, says in [
        (lambda: Budget(0), "budget.total is 0"),
        (lambda: Budget(10, high=0.5, low=0.5), "budget.low 0.5 and budget.high 0.5"),
        (lambda: Budget(10, shares={}), "budget.shares of root"),
    ]:
        with pytest.raises(BudgetError, match=says):
            bad()


def test_zones_are_in_order_and_turns_settle_without_changing_a_byte(
    assemble: Assemble, log: EventLog
) -> None:
    start(log)
    seen: dict[str, tuple[Zone, list[int]]] = {}
    settled = 0
    for i in range(14):
        turn(log, i)
        context = assemble(ThreeZones(9000), log)
        zones = [b.zone for b in context.boundaries]
        assert zones == sorted(zones, key=list(Zone).index)
        for segment in context.segments:
            if segment.key in seen and segment.key not in ("reminder",):
                zone, ids = seen[segment.key]
                assert segment.token_ids.tolist() == ids
                settled += (zone, segment.zone) == (Zone.LEAF, Zone.TRUNK)
                assert (zone, segment.zone) != (Zone.TRUNK, Zone.LEAF)
            seen[segment.key] = (segment.zone, segment.token_ids.tolist())
    assert settled > 10


def test_below_the_high_mark_every_call_extends_the_last(assemble: Assemble, log: EventLog) -> None:
    start(log)
    previous: Context | None = None
    for i in range(12):
        turn(log, i)
        context = assemble(ThreeZones(9000), log)
        if previous is not None:
            # Up to the reminder, which is the tail of each call.
            reminder = next(b.start for b in previous.boundaries if b.key == "reminder")
            assert common_prefix(previous.token_ids, context.token_ids) >= reminder
        previous = context


def test_batches_go_from_high_to_low_and_are_rare(assemble: Assemble, log: EventLog) -> None:
    start(log)
    budget = Budget(6000)
    sizes, dropped = [], []
    for i in range(60):
        turn(log, i)
        report = assemble(ThreeZones(budget), log).report
        sizes.append(report.tokens)
        dropped.append(len(report.dropped))
    assert max(sizes) < budget.high_tokens
    batches = [i for i in range(1, len(sizes)) if dropped[i] > dropped[i - 1]]
    assert 3 <= len(batches) <= 12
    assert all(sizes[i] <= budget.low_tokens + 100 for i in batches)
    assert all(dropped[i] >= dropped[i - 1] for i in range(1, len(dropped)))
    # Between batches the prompt only grows.
    assert all(sizes[i] > sizes[i - 1] for i in range(1, len(sizes)) if i not in batches)


@settings(max_examples=25, deadline=None)
@given(
    plan=st.lists(
        st.tuples(st.sampled_from(["call", "parallel", "user", "late", "file", "fail"]), st.integers(1, 120)),
        min_size=1,
        max_size=25,
    ),
    budget=st.sampled_from([2500, 4000, 9000]),
)
def test_calls_and_results_are_never_split(
    assemble: Assemble, plan: list[tuple[str, int]], budget: int
) -> None:
    log = EventLog.memory(clock=lambda: 0)
    start(log)
    for i, (what, words) in enumerate(plan):
        if what in ("call", "fail"):
            turn(log, i, words, exit_code=what == "fail")
        elif what == "user":
            record.user(log, f"And {i}?")
        elif what == "file":
            record.file_version(log, f"file:///{words % 3}.py", f"x = {i}\n" * words)
        else:
            made = [
                {"id": f"{i}{s}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for s in "ab"
            ]
            record.assistant(log, "two", tool_calls=made)
            record.tool_result(log, f"{i}a", "first " * words)
            if what == "late":
                # Its second result comes after the model spoke again.
                record.assistant(log, "meanwhile")
            record.tool_result(log, f"{i}b", "second")
    for policy in (ThreeZones(budget), AppendOnly(), SlidingWindow(budget)):
        try:
            context = assemble(policy, log)
        except BudgetError as error:
            assert "tokens" in str(error)  # noqa: PT017
            continue
        assert whole_exchanges(context), policy.name
        staged = {s.key for s in context.segments}
        gone = {d.key for d in context.report.dropped}
        assert not staged & gone
        if isinstance(policy, ThreeZones):
            assert context.token_ids.size <= budget
            assert all(f"e{e.seq}" in staged for e in log.read() if e.data.get("role") == "user")


def test_anchors_stay(assemble: Assemble, log: EventLog) -> None:
    start(log)
    turn(log, 0)
    turn(log, 1, exit_code=1)
    log.append(EventKind.ASSISTANT, "accepted diff", data={"role": "assistant", "anchor": True})
    record.user(log, "The port is 5433.")
    for i in range(2, 40):
        turn(log, i, exit_code=1 if i == 9 else 0)
    context = assemble(ThreeZones(2500), log)
    staged = {s.key for s in context.segments}
    first_failure = next(f"e{e.seq}" for e in log.read() if e.exit_code == 1)
    assert first_failure in staged
    assert {f"e{e.seq}" for e in log.read() if e.data.get("anchor") or e.data.get("role") == "user"} <= staged
    later_failure = [f"e{e.seq}" for e in log.read() if e.exit_code == 1][1]
    assert later_failure in {d.key for d in context.report.dropped}
    assert "archived" in staged


def test_superseded_reads_shrink_first_at_a_batch(assemble: Assemble, log: EventLog) -> None:
    start(log)
    commands = [
        ("cat /w/a.py", "line of code\n" * 60),
        ("sed -i s/a/b/ /w/a.py", ""),
        *[("ls", f"file{i}\n" * 40) for i in range(8)],
    ]
    for i, (command, output) in enumerate(commands):
        call = {
            "id": f"c{i}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        record.assistant(log, f"step {i}", tool_calls=[call])
        # The first read is pinned, so that it is still there after the batch.
        data = {"role": "tool", "message": {"name": "bash"}, "anchor": i == 0}
        log.append(EventKind.TOOL_RESULT, output, data=data, call_id=f"c{i}", exit_code=0)
    early = assemble(ThreeZones(9000), log)
    assert not any("stale view" in str(m["content"]) for m in early.messages)
    late = assemble(ThreeZones(3000), log)
    assert late.report.dropped
    shown = next(m["content"] for m in late.messages if m.get("tool_call_id") == "c0")
    assert "stale view of /w/a.py" in shown
    assert "line of code" not in shown
    assert log.payload(log.event(6).payload_hash) == b"line of code\n" * 60


def test_files_in_work_are_staged_by_volatility_and_refreshed_in_batches(
    assemble: Assemble, log: EventLog
) -> None:
    start(log)
    record.file_version(log, "file:///often.py", "v1")
    record.file_version(log, "file:///rare.py", "only version")
    turn(log, 0, 150)
    record.file_version(log, "file:///often.py", "v2")
    for i in range(1, 6):
        turn(log, i, 150)
    context = assemble(ThreeZones(4000, keep_turns=2), log)
    files = [(s.source.uri, s.zone) for s in context.segments if s.source.uri.startswith("file://")]
    assert files == [("file:///rare.py", Zone.TRUNK), ("file:///often.py", Zone.TRUNK)]
    text = json.dumps(context.messages)
    assert "v2" in text
    assert "v1" not in text


def test_the_reminder_ends_the_prompt_and_fits(
    assemble: Assemble, log: EventLog, tok: TokenizersAdapter
) -> None:
    start(log)
    for i in range(30):
        record.constraint(log, f"Constraint number {i} is to be kept.")
    turn(log, 0)
    context = assemble(ThreeZones(9000, reminder_tokens=100), log)
    assert [b.key for b in context.boundaries[-2:]] == ["reminder", "generation_prompt"]
    tail = context.messages[-1]["content"]
    assert "Never edit vendor/." in tail
    assert "more in the system message)" in tail
    reminder = tail[tail.index("Constraints that hold") :]
    assert tok.encode(reminder, parse_special=False).size <= 100
    assert all(f"number {i} is" in context.messages[0]["content"] for i in range(30))
    without = assemble(ThreeZones(9000, reminder_tokens=0), log)
    assert "reminder" not in {s.key for s in without.segments}
