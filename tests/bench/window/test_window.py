"""`deeproot bench window`: its probes, its shares, and both of its forms."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.live.client import Answer
from deeproot.bench.window import asking
from deeproot.bench.window.asking import Asked
from deeproot.bench.window.probes import CHARS_A_TOKEN, WITH_STATUS, Probe, Task, make_probes
from deeproot.bench.window.usable import largest_usable, smallest_sufficient, wilson
from deeproot.runtime.cli import main
from deeproot.runtime.options import EngineOptions

from ...runtime.server.harness import RunningServer, running_server
from ...runtime.tiny_model import write_tiny_model


def read(prompt: str) -> Callable[[str], str]:
    """The codes of places, by following what the log says."""
    codes = dict(re.findall(r"The code of the (\w+) is (\d+)\.", prompt))
    same = dict(re.findall(r"The (\w+) has the same code as the (\w+)\.", prompt))

    def code(place: str) -> str:
        return codes[place] if place in codes else code(same[place])

    return code


def right(probe: Probe) -> str:
    """An answer from the prompt's log alone, without what the probe knows."""
    log, question = probe.prompt.rsplit("\n\n", 1)
    log = log.split("<agent_status>")[0]
    if probe.task is Task.COUNT:
        return str(len(re.findall(r"Alarm \d+ rang", log)))
    if probe.task is Task.STATE:
        return re.findall(r"The valve is now (\w+)\.", log)[-1]
    places = re.findall(r"the (\w+)(?=[,?])", question)
    answer = ", ".join(read(log)(place) for place in places)
    return f"Marble: {answer}" if probe.task is Task.RULE else answer


@settings(max_examples=25, deadline=None)
@given(st.integers(64, 2000), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 10**6))
def test_the_log_holds_each_probes_answer(tokens: int, depth: float, seed: int) -> None:
    probes = make_probes([tokens], [depth], seed, 1)
    assert len(probes) == len(Task) + len(WITH_STATUS)
    for probe in probes:
        assert probe.passed(right(probe)), probe
        assert not probe.passed("I do not know.")
        assert not probe.passed("")
        assert ("<agent_status>" in probe.prompt) is probe.status
        if tokens >= 300:
            assert abs(len(probe.prompt) - tokens * CHARS_A_TOKEN) < 200
    by_task = {(p.task, p.status): p for p in probes}
    for task in WITH_STATUS:  # the same question either way
        assert by_task[task, False].wanted == by_task[task, True].wanted


def test_needles_lie_where_their_depth_says() -> None:
    for depth in (0.0, 0.5, 1.0):
        (probe,) = [p for p in make_probes([2000], [depth], 1, 1) if p.task is Task.NEEDLE]
        assert probe.prompt.index("The code of") / len(probe.prompt) == pytest.approx(depth, abs=0.06)


def test_what_counts_as_right() -> None:
    probe = Probe(Task.RULE, 1, 0.0, False, "", ("12345",), "MARBLE")
    assert probe.passed("**Marble**, the code is 12345.")
    assert not probe.passed("The code is 12345. Marble")
    assert not probe.passed("Marble 123456")


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.data())
def test_wilson_holds_the_share_and_narrows(total: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, total))
    low, high = wilson(passed, total)
    assert 0 <= low <= passed / total <= high <= 1
    wide = wilson(passed * 10, total * 10)
    assert wide[1] - wide[0] < high - low
    mirrored = wilson(total - passed, total)
    assert mirrored == (pytest.approx(1 - high), pytest.approx(1 - low))


def test_wilson_known_values_and_no_trials() -> None:
    assert wilson(8, 10) == (pytest.approx(0.490, abs=5e-4), pytest.approx(0.943, abs=5e-4))
    with pytest.raises(ValueError, match="0 of 0"):
        wilson(0, 0)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(1, 50), st.floats(0, 1), max_size=8), st.floats(0, 1))
def test_usable_lengths_by_trying_each(shares: dict[int, float], least: float) -> None:
    good = [n for n in shares if all(shares[m] >= least for m in shares if m <= n)]
    enough = [n for n in shares if all(shares[m] >= least for m in shares if m >= n)]
    assert largest_usable(shares, least) == max(good, default=None)
    assert smallest_sufficient(shares, least) == min(enough, default=None)


def test_m_star_of_answers_that_get_worse() -> None:
    asked = []
    for probe in make_probes([100, 200, 300], [0.5], 1, 2):
        answer = Answer("s", 1, 0.0, said=right(probe) if probe.tokens < 300 or probe.status else "?")
        asked.append(Asked(probe, answer))
    assert asking.usable(asked, 0.9) == 200
    assert asking.shares(asked, Task.COUNT, True) == {100: 1.0, 200: 1.0, 300: 1.0}
    table = {row[0]: row[1:] for row in asking.table(asked).rows}
    assert table["counting"][2].startswith("0 of 2")
    assert table["counting, with a status bar"][2].startswith("2 of 2")
    failed = Asked(asked[0].probe, Answer("s", 1, 0.0, said=right(asked[0].probe), error="gone"))
    assert not failed.passed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_tiny_model(tmp_path_factory.mktemp("window") / "m", max_position_embeddings=8192)
    options = EngineOptions(
        model=str(model), load_format="dummy", dtype="float32", kv_cache_memory_bytes=2**23, page_size=16
    )
    with running_server(options) as running:
        yield running


def test_a_model_of_random_weights_has_no_usable_window(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--url", f"{server.url}/v1", "--lengths", "80", "--depths", "0.5", "--repeats", "1"]
    assert main(["bench", "window", *flags, "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "below the shortest" in found["title"]
    assert len(found["metrics"]) == len(Task) + len(WITH_STATUS)
    assert (tmp_path / "completion_by_length.png").is_file()


def test_evidence_of_runs_by_budget(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--sessions", "1", "--turns", "14", "--seed", "2", "--budgets", "4000", "9000", "40000"]
    assert main(["bench", "window", *flags, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    taken = {metric["name"]: metric["samples"][0] for metric in found["metrics"]}
    for layout in ("sliding window", "three zones"):
        assert taken[f"facts available, {layout}, 40000 tokens"] == 1
        assert taken[f"rules available, {layout}, 40000 tokens"] == 1
        assert taken[f"facts available, {layout}, 4000 tokens"] < 1  # the root alone nearly fills it
        assert taken[f"rules available, {layout}, 4000 tokens"] < 1
    stars = {row[0]: row[-1] for row in found["tables"][0]["rows"]}
    assert stars["three zones"] in ("9,000", "40,000")


def test_the_quick_form_and_what_cannot_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench", "window", "--quick", "--runs", "airline", "--sessions", "1", "--budgets", "9000"]) == 0
    )
    assert "Evidence availability" in capsys.readouterr().out
    assert main(["bench", "window", "--url", "http://127.0.0.1:9/v1", "--quick"]) == 2
    assert "does not answer" in capsys.readouterr().err
