"""Verdicts against a plain count of all ways to deal out the samples, and against known shifts in noise."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.report.result import Column, How, Metric, Result, Table, encode, read_result
from deeproot.bench.report.verdicts import Verdict, compare, rank_test
from deeproot.runtime.cli import main


def metric(*samples: float, how: How = How.MEASURED, higher: bool = False) -> Metric:
    return Metric(name="x", unit="ms", how=how, samples=samples, higher_is_better=higher)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4), st.lists(st.integers(0, 4), min_size=1, max_size=3)
)
def test_rank_test_counts_every_way_to_deal(a: list[int], b: list[int]) -> None:
    values = [*a, *b]

    def difference(order: tuple[int, ...]) -> float:
        """Pairs that A wins over those that it loses: the same order as rank sums, from no ranks."""
        first, second = order[: len(a)], order[len(a) :]
        return abs(sum((x > y) - (x < y) for x in first for y in second))

    seen = difference(tuple(values))
    ways = [difference(order) for order in permutations(values)]
    assert rank_test(a, b) == pytest.approx(sum(way >= seen for way in ways) / len(ways))


def test_random_ways_are_near_the_exact_ones() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 1, 40).tolist(), rng.normal(0.6, 1, 40).tolist()
    far = rank_test(a, [x + 50 for x in a])
    assert rank_test(a, b) < 0.05
    assert far == pytest.approx(1 / 20_001)
    assert rank_test(a, list(a)) == 1


def test_noise_alone_is_seldom_called_a_difference() -> None:
    rng = np.random.default_rng(3)
    called = 0
    for _ in range(300):
        a, b = (metric(*rng.lognormal(3, 0.3, 5)) for _ in range(2))
        called += compare(a, b).verdict is not Verdict.NOT_SEEN
    assert called <= 300 * 0.05 + 3 * (300 * 0.05 * 0.95) ** 0.5


def test_a_shift_is_found_and_has_the_right_sign() -> None:
    rng = np.random.default_rng(4)
    a, b = metric(*rng.normal(100, 3, 8)), metric(*rng.normal(130, 3, 8))
    found = compare(a, b)
    assert found.verdict is Verdict.WORSE
    assert compare(b, a).verdict is Verdict.BETTER
    assert found.interval is not None
    assert found.interval[0] < 1.3 < found.interval[1]
    higher = [
        Metric(name="x", unit="ms", how=How.MEASURED, samples=m.samples, higher_is_better=True)
        for m in (a, b)
    ]
    assert compare(*higher).verdict is Verdict.BETTER


def test_counted_ones_are_compared_exactly_and_few_samples_say_nothing() -> None:
    counted = [metric(x, how=How.COUNTED) for x in (100.0, 101.0)]
    assert compare(counted[0], counted[0]).verdict is Verdict.SAME
    assert compare(*counted).verdict is Verdict.WORSE
    assert compare(metric(1.0, 1.0, 1.0), metric(9.0, 9.0, 9.0)).verdict is Verdict.TOO_FEW
    assert compare(metric(0.0, how=How.COUNTED), counted[0]).ratio is None
    with pytest.raises(ValueError, match="not the same quantity"):
        compare(metric(1.0), counted[0])


def write(path: Path, *metrics: Metric, device: str = "d") -> Path:
    table = Table("t", (Column("a"), Column("b", How.COUNTED)), (("x", "1"),))
    made = Result(
        command="bench x",
        title="<b>x</b>",
        environment={"device": device},
        settings={"seed": 1},
        metrics=metrics,
        tables=(table,),
    )
    path.write_text(encode(made))
    assert read_result(path) == made
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write(tmp_path / "a.json", metric(*[10.0, 11.0, 12.0, 10.5, 11.5]))
    b = write(tmp_path / "b.json", metric(*[20.0, 21.0, 22.0, 20.5, 21.5]), device="other")
    assert main(["bench", "compare", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    assert "1.909" in shown
    assert "worse" in shown
    assert "| device" in shown
    assert main(["bench", "compare", str(a), str(b), "--fail-if-worse"]) == 1
    capsys.readouterr()
    assert main(["bench", "compare", str(b), str(a), "--fail-if-worse", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tables"][0]["rows"][0][-1] == "better"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no result of a benchmark"),
        ('{"command": 3}', r"command"),
        ("[]", "no result"),
        ('{"command": "x", "title": "x", "environment": {}, "settings": {}, "form": 9}', "form is 9"),
        (
            '{"command": "x", "title": "x", "environment": {}, "settings": {}, "metrics":'
            ' [{"name": "n", "unit": "", "how": "counted exactly", "samples": []}]}',
            "'n' has no samples",
        ),
        (
            '{"command": "x", "title": "x", "environment": {}, "settings": {}, "metrics":'
            ' [{"name": "n", "unit": "", "how": "guessed", "samples": [1]}]}',
            "how",
        ),
    ],
)
def test_what_is_no_result_is_named(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    good = write(tmp_path / "good.json", metric(1.0))
    assert main(["bench", "compare", str(good), str(bad)]) == 2
    err = capsys.readouterr().err
    assert "bad.json" in err
    assert said in err
    assert main(["bench", "compare", str(good), str(tmp_path / "none.json")]) == 2


def test_results_without_a_common_quantity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write(tmp_path / "a.json", metric(1.0)), write(tmp_path / "b.json")
    assert main(["bench", "compare", str(a), str(b)]) == 2
    assert "no quantity in common" in capsys.readouterr().err
