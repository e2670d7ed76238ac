"""Budgets, zones, order, batches; policies against what they promise."""

import json
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.anti_patterns import (
    ChangingProfile,
    HistoryAsText,
    ShuffledTools,
    TimestampAtZero,
)
from deeproot.runtime.context.budget import Budget, BudgetError
from deeproot.runtime.context.compare import prefix_break
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.prefix_cost import common_prefix, prefix_cost
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

Assemble = Callable[..., Context]
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{i}", "parameters": {"b": 1, "a": 2}}} for i in range(5)
]


@pytest.fixture
def assemble(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> Assemble:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def call(policy: LayoutPolicy, log: EventLog, *, upto: int | None = None) -> Context:
        return WorkingSet(policy=policy, tokenizer=segments, template=template).assemble(log, upto=upto)

    return call


def start(log: EventLog) -> None:
    record.policy(log, "You are careful.")
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, TOOLS)
    record.user(log, "Fix the test.")


def turn(log: EventLog, i: int, words: int = 12, exit_code: int = 0) -> None:
    call = {
        "id": f"c{i}",
        "type": "function",
        "function": {"name": "tool_1", "arguments": json.dumps({"n": i})},
    }
    record.assistant(log, f"Turn {i}.", tool_calls=[call])
    text = " ".join(random.Random(i).choice(["alpha", "beta", "gamma", "delta"]) for _ in range(words))
    record.tool_result(log, f"c{i}", text, name="tool_1", exit_code=exit_code)


def calls_of(log: EventLog) -> list[int]:
    """After which events the model was called: all that are not its own messages, from the task on."""
    return [e.seq for e in log.read() if e.kind is EventKind.TOOL_RESULT]


def whole_exchanges(context: Context) -> bool:
    """Every tool message follows the message that made its call, and every call has its result."""
    open_calls: set[str] = set()
    for message in context.messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                return False
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return False
        open_calls |= {call["id"] for call in message.get("tool_calls", ())}
    return not open_calls


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


def test_fixed_overhead_over_the_mark_is_an_error_at_once(assemble: Assemble, log: EventLog) -> None:
    record.policy(log, "word " * 900)
    record.user(log, "x")
    with pytest.raises(
        BudgetError, match=r"reach the high water mark \(800 of 1000\): no compaction can help"
    ):
        assemble(ThreeZones(1000), log)


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
    assemble_for_property: Assemble, plan: list[tuple[str, int]], budget: int
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
            context = assemble_for_property(policy, log)
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


@pytest.fixture(scope="session")
def assemble_for_property(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> Assemble:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")
    return lambda policy, log: WorkingSet(policy=policy, tokenizer=segments, template=template).assemble(log)


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


def test_tools_are_sorted_once_and_frozen(assemble: Assemble, log: EventLog) -> None:
    start(log)
    turn(log, 0)
    before = assemble(ThreeZones(9000), log)
    shuffled = [
        {"function": {"parameters": {"a": 2, "b": 1}, "name": t["function"]["name"]}, "type": "function"}
        for t in reversed(TOOLS)
    ]
    record.tools(log, shuffled)
    same = assemble(ThreeZones(9000), log)
    assert same.token_ids.tobytes() == before.token_ids.tobytes()
    assert same.report.notes == ()
    record.tools(log, [*TOOLS, {"type": "function", "function": {"name": "another"}}])
    changed = assemble(ThreeZones(9000), log)
    assert [t["function"]["name"] for t in changed.tools] == ["another", *[f"tool_{i}" for i in range(5)]]
    assert "tools changed at e" in changed.report.notes[0]


def test_tools_that_have_no_canonical_spelling_still_work(assemble: Assemble, log: EventLog) -> None:
    record.tools(log, [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**63 - 1}}}])
    record.user(log, "go")
    context = assemble(AppendOnly(), log)
    assert context.tools[0]["function"]["parameters"]["maximum"] == 2**63 - 1
    with pytest.raises(EventLogError, match=r"tools\[0\]\.function\.name is missing"):
        record.tools(log, [{"name": "f"}])
    log.append(EventKind.INSTRUCTION, "{}", data={"part": "tools"})
    with pytest.raises(ValueError, match="event 3: tools are no JSON list of objects"):
        assemble(AppendOnly(), log)


def test_the_report_is_json_and_names_zones_over_their_share(assemble: Assemble, log: EventLog) -> None:
    start(log)
    for i in range(12):
        turn(log, i)
    report = assemble(ThreeZones(5000), log).report
    told = json.loads(json.dumps(report.to_dict()))
    assert told["tokens"] == report.tokens == sum(told["zone_tokens"].values())
    assert len(told["dropped"]) == len(report.dropped) > 0
    assert "root has" not in str(report)
    small = assemble(ThreeZones(3000), log).report
    assert f"root has {small.zone_tokens[Zone.ROOT]} tokens, over its share of 600" in small.notes


def test_conditions_multiply_the_roots(assemble: Assemble, log: EventLog) -> None:
    record.policy(log, "On Linux, with network, as root.", conditions=["linux", "network", "root"])
    record.policy(log, "In CI.", conditions=["root"])
    record.user(log, "go")
    report = assemble(ThreeZones(4000), log).report
    assert report.variants.keys == 8
    assert "3 condition(s) before the cache boundary (linux, network, root): 8 variants" in str(report)


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
