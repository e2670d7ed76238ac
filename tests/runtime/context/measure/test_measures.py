"""Each measure on a run small enough to be worked out by hand, and the source's figures."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.measure.actions import read_run
from deeproot.runtime.context.measure.measures import (
    Outcome,
    Share,
    measure,
    outcome_of,
    r_assoc,
    s_cr,
    tcr,
    u_eff,
    wasted_turns,
)
from deeproot.runtime.context.measure.prices import PriceTable, cost_of_calls
from deeproot.runtime.context.measure.replay import Line, Replayer, RoughTokenizer, StagedCall
from deeproot.runtime.context.measure.words import facts_in, facts_of_arguments
from deeproot.runtime.context.openai_messages import import_messages
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow
from deeproot.runtime.context.swe_agent import import_trajectory
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer

CONTEXT = Path(__file__).parents[1]


def act(log: EventLog, number: int, command: str, output: str, exit_code: int | None = 0) -> int:
    arguments = json.dumps({"cmd": command})
    call = {"id": f"c{number}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    seq = record.assistant(log, "", tool_calls=[call])
    record.tool_result(log, f"c{number}", output, exit_code=exit_code)
    return seq


def staged(seq: int, *lines: tuple[int, str], text: str = "", compactions: int = 0) -> StagedCall:
    made = tuple(Line(tokens, facts_in(words)) for tokens, words in lines)
    return StagedCall(seq, 0, 0, np.zeros(1, np.int32), 0, made, text, compactions)


def replayer(policy: AppendOnly | SlidingWindow | ThreeZones | None = None) -> Replayer:
    return Replayer(policy or AppendOnly(), SegmentTokenizer(RoughTokenizer()))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("The port is 5433, not the default.", {"5433"}),
        (
            "pytest --db-port=5433 tests/test_auth.py",
            {"db-port", "5433", "tests/test_auth.py", "test_auth.py"},
        ),
        ("src/main.c:12:3: error: `fooBar` undeclared.", {"src/main.c", "main.c", "fooBar"}),
        ("sed -i s/5432/5433/ a", {"s/5432/5433", "5432", "5433"}),
        ("user mia_li_3668 has 12 bags", {"mia_li_3668"}),
        ("plain words only, nothing else", set()),
    ],
)
def test_facts_are_what_plain_language_is_not(text: str, facts: set[str]) -> None:
    assert facts_in(text) == facts


@settings(max_examples=50, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    )
)
def test_arguments_of_any_form_have_facts(value: object) -> None:
    found = facts_of_arguments(value)
    assert all(isinstance(fact, str) for fact in found)


def test_an_action_refers_to_what_an_observation_shows_and_no_instruction_gives(log: EventLog) -> None:
    record.user(log, "Look at tests/test_auth.py")
    first = act(log, 1, "ls", "token_a1 token_b2 tests/test_auth.py")
    act(log, 2, "cat x", "token_a1")
    act(log, 3, "grep token_a1 token_b2 tests/test_auth.py token_c3", "")
    refers = read_run(log).turns[2].refers
    assert {fact: shown.seq for fact, shown in refers.items()} == {"token_a1": 5, "token_b2": 3}
    assert first == 2


def test_r_assoc_asks_whether_both_ends_of_a_distant_join_are_staged(log: EventLog) -> None:
    act(log, 1, "ls", "key_one1")
    for number in range(2, 6):
        act(log, number, "true", "")
    act(log, 6, "ls", "key_two2")
    joined = act(log, 7, "join key_one1 key_two2", "")
    actions = read_run(log).actions
    calls = {turn.seq: staged(turn.seq) for turn in actions}
    assert r_assoc(actions, calls | {joined: staged(joined, (1, "key_one1"), (1, "key_two2"))}) == Share(1, 1)
    assert r_assoc(actions, calls | {joined: staged(joined, (1, "key_two2"))}) == Share(0, 1)
    near = [turn for turn in actions if turn.seq != joined]
    assert r_assoc(near, calls).value is None


@pytest.mark.parametrize(
    ("steps", "stale"),
    [
        ([("cat a.py", "old_name1"), ("sed -i s/x/y/ a.py", ""), ("grep old_name1 b.py", "")], 1),
        ([("cat a.py", "old_name1"), ("sed -i s/x/y/ a.py", ""), ("cat a.py", "old_name1"), ("grep old_name1 b.py", "")], 0),
        ([("cat a.py", "x"), ("sed -i s/x/y/ a.py", ""), ("sed -i s/y/z/ a.py", "")], 1),
        ([("cat a.py", "x"), ("sed -i s/x/y/ a.py", ""), ("cat a.py", "y"), ("sed -i s/y/z/ a.py", "")], 0),
        ([("cat a.py", "old_name1"), ("ls", "old_name1"), ("sed -i s/x/y/ a.py", ""), ("grep old_name1 b.py", "")], 0),
        ([("cat a.py", "old_name1"), ("sed -i s/x/y/ b.py", ""), ("grep old_name1 b.py", "")], 0),
    ],
)  # fmt: skip
def test_eps_stale_counts_actions_on_what_no_longer_holds(
    steps: list[tuple[str, str]], stale: int, log: EventLog
) -> None:
    for number, (command, output) in enumerate(steps):
        act(log, number, command, output)
    run = read_run(log)
    assert [bool(turn.stale) for turn in run.turns[:-1]] == [False] * (len(steps) - 1)
    assert bool(run.turns[-1].stale) == bool(stale), run.turns[-1].stale


def test_a_file_version_of_the_host_makes_an_older_view_stale(log: EventLog) -> None:
    act(log, 1, "cat a.py", "old_name1")
    record.file_version(log, "a.py", "new_name2")
    act(log, 2, "grep old_name1 b.py", "")
    assert "event 3 made stale" in read_run(log).turns[-1].stale


def test_u_eff_weighs_lines_by_whether_this_or_a_later_action_repeats_them(log: EventLog) -> None:
    act(log, 1, "ls", "key_one1")
    act(log, 2, "true", "")
    act(log, 3, "cat key_one1", "")
    turns = read_run(log).turns
    calls = [
        staged(turns[0].seq, (10, "nothing")),
        staged(turns[1].seq, (3, "key_one1"), (7, "key_two2")),
        staged(turns[2].seq, (1, "key_one1"), (1, "key_two2")),
    ]
    assert u_eff(turns, calls) == pytest.approx((0 + 0.3 + 0.5) / 3)
    assert u_eff([], []) is None


def test_s_cr_is_a_product_over_the_compactions() -> None:
    constraints = {"a": 1, "b": 2, "late": 50}
    calls = [
        staged(10, text="a b", compactions=0),
        staged(20, text="a", compactions=1),
        staged(30, text="a b", compactions=2),
        staged(60, text="", compactions=3),
    ]
    assert s_cr(constraints, calls) == pytest.approx((1.0, 2 / 3, 2 / 3, 0.0))
    assert s_cr({}, calls) == ()


def test_the_sources_figures() -> None:
    assert wasted_turns(30, 0.20, 3) == pytest.approx(18.0)
    assert wasted_turns(30, 0.02, 3) == pytest.approx(1.8)


def test_completion_is_what_a_judge_recorded_and_never_what_the_model_says(log: EventLog) -> None:
    record.assistant(log, "Done! All tests pass.")
    assert outcome_of(log) is None
    record.outcome(log, False, judge="pytest tests/")
    assert outcome_of(log) == Outcome(False, "pytest tests/", 1)
    with pytest.raises(EventLogError, match="judge is empty"):
        record.outcome(log, True, judge="")
    outcomes = [Outcome(True, "t", 8), Outcome(True, "t", 30), Outcome(False, "t", 5)]
    assert [tcr(outcomes, horizon).part for horizon in (10, 25, 50)] == [1, 1, 2]
    assert tcr([], 10).value is None


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


def test_dollars_follow_the_providers_rules() -> None:
    prompts = [ids(*range(1000)), ids(*range(1500)), ids(*range(1500))]
    times = [0, 10**9, 1000 * 10**9]
    outputs = [0, 0, 10]
    plain = cost_of_calls(prompts, times, outputs, PriceTable())
    assert [c.cached for c in plain] == [0, 1000, 1500]
    assert plain[1].dollars == pytest.approx((500 * 3 + 1000 * 0.3) / 1e6)
    assert plain[2].dollars == pytest.approx((1500 * 0.3 + 10 * 15) / 1e6)
    ruled = PriceTable(write_premium=1.25, min_tokens=1024, increment=128, ttl_s=300)
    costs = cost_of_calls(prompts, times, outputs, ruled)
    assert [c.cached for c in costs] == [0, 0, 0]  # too short, too short, too late
    assert costs[0].dollars == pytest.approx(1000 * 3 / 1e6)
    assert costs[1].dollars == pytest.approx(1500 * 3 * 1.25 / 1e6)
    coarse = cost_of_calls(prompts, times, outputs, PriceTable(increment=128))
    assert [c.cached for c in coarse] == [0, 896, 1408]
    for field in ("increment", "ttl_s"):
        with pytest.raises(ValueError, match=f"prices.{field} is 0"):
            PriceTable(**{field: 0})


def test_what_the_server_reported_is_added_up(log: EventLog) -> None:
    record.user(log, "task")
    for i in range(2):
        record.assistant(log, "answer")
        record.usage(log, prompt_tokens=100, cached_tokens=50 * i, output_tokens=3, ttft_s=0.5 * (i + 1))
    found = measure(
        log, read_run(log), replayer().calls(log), output_tokens=[1, 1], prices=PriceTable()
    ).served
    assert found is not None
    assert (found.calls, found.hit_rate, found.output_tokens, found.ttft_s) == (2, 0.25, 6, (0.5, 1.0))
    with pytest.raises(EventLogError, match="50 prompt, 60 cached"):
        record.usage(log, prompt_tokens=50, cached_tokens=60, output_tokens=0)


def airline(number: int) -> EventLog:
    line = (CONTEXT / "data" / "tau_airline_6.jsonl").read_text().splitlines()[number]
    log = EventLog.memory(clock=lambda: 1_700_000_000 * 10**9)
    record.constraint(log, "Ask before you book.")
    import_messages(log, json.loads(line)["messages"])
    return log


def test_a_real_run_sent_whole_and_through_a_window() -> None:
    log = airline(0)
    run = read_run(log)
    whole, window = replayer().calls(log), replayer(SlidingWindow(4_000)).calls(log)
    outputs = [1] * len(run.turns)
    full = measure(log, run, whole, output_tokens=outputs, prices=PriceTable())
    short = measure(log, run, window, output_tokens=outputs, prices=PriceTable())
    assert (full.compactions, full.eps_stale.part) == (0, 0)
    assert short.compactions > 0
    assert full.c_r is not None
    assert short.c_r is not None
    assert 0.8 < full.c_r <= 1.2
    assert short.c_r > full.c_r
    assert full.r_assoc.whole == short.r_assoc.whole > 0
    assert full.r_assoc.value == 1.0
    assert short.r_assoc.part < full.r_assoc.part
    assert set(short.s_cr) == {1.0}  # the root keeps it
    assert full.replayed.hit_rate is not None
    assert short.replayed.hit_rate is not None
    assert short.replayed.hit_rate < full.replayed.hit_rate


def test_unfiltered_raw_history_is_the_measure_of_compression(log: EventLog) -> None:
    """An append-only host that filters nothing has C_r = 1 but for its envelopes."""
    record.user(log, "task " * 100)
    for number in range(3):
        act(log, number, "ls", "word " * 400)
    calls = replayer().calls(log)
    assert [call.raw_tokens for call in calls] == sorted(call.raw_tokens for call in calls)
    assert all(call.raw_tokens <= call.token_ids.size for call in calls[:2])


def test_a_coding_agents_run_has_stale_actions_where_it_edits_blind() -> None:
    log = EventLog.memory(clock=lambda: 0)
    document = json.loads((CONTEXT / "fixtures" / "sweagent_pydicom_1458.traj.json").read_text())
    import_trajectory(log, document, start_ns=0)
    run = read_run(log)
    assert len(run.actions) == len(document["trajectory"])
    assert all("event" in turn.stale for turn in run.actions if turn.stale)
    assert len({turn.seq for turn in run.actions if turn.stale}) < len(run.actions) / 2


def test_a_batch_of_the_three_zones_counts_as_one_compaction(log: EventLog) -> None:
    record.constraint(log, "Never edit vendor/.")
    record.user(log, "task")
    for number in range(60):
        act(log, number, f"echo {number}", "\n".join(f"output {number} line {i}" for i in range(20)))
    calls = replayer(ThreeZones(4_000)).calls(log)
    ws = replayer(ThreeZones(4_000))
    last = ws._staged.assemble(log, upto=calls[-1].seq - 1)
    (note,) = [n for n in last.report.notes if "batch compaction" in n]
    assert calls[-1].compactions == int(note.split()[0]) > 2
    assert s_cr({"Never edit vendor/.": 1}, calls) == (1.0,) * (calls[-1].compactions + 1)
