"""The trace that real servers are measured with, and what is made of its rounds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.bench.hints_live import main
from deeproot.bench.hints_player import Answered
from deeproot.bench.hints_rounds import Run, Sizes, all_rounds, each_round, keep, kept, pairs
from deeproot.bench.hints_trace import Session, Shape, made_call, singles


def test_a_trace_is_the_same_from_the_same_seed() -> None:
    shape = Shape(turns=20, most=400)
    sent = [[], []]
    for requests in sent:
        for number in range(2):
            session = Session(shape, 5, number)
            for step in session.steps:
                requests.append(session.messages())
                session.answered([made_call(step.tool)], step)
    assert sent[0] == sent[1]
    first, second = sent[0][:20], sent[0][20:]
    assert first[0][0] == second[0][0], "one root"
    assert first[0][1] != second[0][1], "tasks of their own"
    assert any("left out" in messages[1]["content"] for messages in first)
    assert max(len(messages) for messages in first) < 2 + 2 * 19
    for messages in first:
        roles = [message["role"] for message in messages]
        assert roles == ["system", "user", *["assistant", "tool"] * ((len(roles) - 2) // 2)]
    cold = list(singles(shape, 5))
    assert cold == list(singles(shape, 5))
    assert len({messages[0]["content"] for _, messages in cold}) == shape.cold


@pytest.mark.parametrize(("flags", "says"), [(["--share", "0"], "between"), (["--turns", "0"], "at least 1")])
def test_values_that_cannot_work_are_named(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--model", "x", *flags])
    assert says in capsys.readouterr().err


COUNTERS = {
    "deeproot_cached_tokens_total": 30.0,
    "deeproot_prompt_tokens_total": 120.0,
    "deeproot_computed_tokens_total": 90.0,
    "deeproot_evicted_pages_total": 4.0,
    "deeproot_preemptions_total": 0.0,
    **{f'deeproot_cache_hit_tokens_total{{class="{zone}"}}': 5.0 for zone in ("leaf", "trunk", "root")},
}


def made_run(arm: str, seed: int, seconds: list[float]) -> Run:
    answers = [Answered("agent" if i % 2 else "cold", one, 10, 4) for i, one in enumerate(seconds)]
    answers.append(Answered("cold", error="429: full"))
    return Run(arm, seed, Sizes(1000, 200, 64, 4096), 12, answers, 9.0, COUNTERS)


def test_percentiles_are_those_of_all_rounds_and_the_spread_is_that_of_single_ones() -> None:
    rng = np.random.default_rng(0)
    times = rng.exponential(1.0, (2, 3, 40))
    runs = [made_run(arm, seed, times[i][seed].tolist()) for i, arm in enumerate("ab") for seed in range(3)]
    alone = made_run("a", 9, [1.0, 2.0])
    rounds = pairs([*runs, alone], ["a", "b"])
    assert [[run.seed for run in one] for one in rounds] == [[0, 0], [1, 1], [2, 2]]
    rows = {row[0]: row[1:] for row in all_rounds(rounds, ["a", "b"]).rows}
    assert len(rows) == 6
    p99 = [np.percentile(times[i], 99) for i in (0, 1)]
    single = [np.percentile(times[1][k], 99) / np.percentile(times[0][k], 99) - 1 for k in range(3)]
    assert rows["all, p99"] == (
        "120",
        *(f"{one * 1e3:,.0f}" for one in p99),
        f"{p99[1] / p99[0] - 1:+.0%}",
        f"{min(single):+.0%} to {max(single):+.0%}",
    )
    singles_ = np.percentile(times[0][:, ::2], 50)
    assert rows["single prompts, p50"][:2] == ("60", f"{singles_ * 1e3:,.0f}")
    (row, *_) = each_round([alone]).rows
    assert row[0] == "a, seed 9"
    assert row[2:5] == ("25.0%", "40.0%", "15")
    assert row[8:10] == ("2", "1"), "answered and refused"


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.lists(st.floats(0.001, 9), max_size=4)))
)
def test_what_was_kept_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, int, list[float]]]
) -> None:
    path = tmp_path_factory.mktemp("kept") / "rounds.jsonl"
    settings = {"share": 0.25, "serve": ["--dtype", "float32"]}
    assert kept(path, settings) == []
    runs = [made_run(*one) for one in made]
    for run in runs:
        keep(path, settings, run)
    assert kept(path, settings) == runs


def test_rounds_of_other_settings_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    keep(path, {"share": 0.25}, made_run("a", 0, [1.0]))
    for settings in ({"share": 0.5}, {}, {"share": 0.25, "turns": 3}):
        with pytest.raises(ValueError, match="give another file"):
            kept(path, settings)
    path.write_text("{}")
    with pytest.raises(ValueError, match="line 1"):
        kept(path, {"share": 0.25})
