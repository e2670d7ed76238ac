"""`deeproot bench` from its command line."""

import json
from pathlib import Path

import pytest

from deeproot.bench.cachesim import examples
from deeproot.runtime.cli import main

TRAJECTORY = (
    Path(__file__).parents[2] / "runtime" / "context" / "fixtures" / "sweagent_pydicom_1458.traj.json"
)


def test_every_worked_example_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads(examples.EXAMPLES.read_text())
    assert main(["bench", "layouts", "--example", "all", "--json"]) == 0
    found = {example["name"]: example for example in json.loads(capsys.readouterr().out)}
    assert found.keys() == {entry["id"] for entry in entries}
    nothing = {name for name, example in found.items() if example["computed"] is None}
    assert nothing == {"strategy_table", "invalidation_example"}
    for entry in entries:
        example = found[entry["id"]]
        assert example["agrees"] is True
        assert example["computed"] is None or example["computed"].keys() == entry["value"].keys()
    assert main(["bench", "layouts", "--example", "layout_cost"]) == 0
    shown = capsys.readouterr().out
    assert "hit_rate: 0.75625" in shown
    assert "as expected" in shown


def test_an_example_that_does_not_come_out_is_said_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = json.loads(examples.EXAMPLES.read_text())
    entries[0]["value"]["hit_rate"] += 1e-6
    (tmp_path / "e.json").write_text(json.dumps(entries))
    monkeypatch.setattr(examples, "EXAMPLES", tmp_path / "e.json")
    assert main(["bench", "layouts", "--example", "layout_cost"]) == 1
    assert "NOT as expected" in capsys.readouterr().out


def test_an_unknown_example_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "layouts", "--example", "x"]) == 2
    assert (
        "--example x: there is none of that name; give all, or one of layout_cost" in capsys.readouterr().err
    )


def test_replay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["bench", "replay", "--workload", "agents", "--sessions", "2", "--cache-tokens", "20000"]
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    engines = [cache for cache in found["caches"] if cache["dollars"] is None]
    assert [cache["cache"] for cache in engines] == ["deeproot", "vLLM", "SGLang"]
    assert all(cache["cached"] + cache["computed"] == cache["prompt"] for cache in found["caches"])
    assert main(flags) == 0
    assert "agents, first 2, seed 1" in capsys.readouterr().out
    (tmp_path / "bad").write_text("{")
    assert main(["bench", "replay", "--file", str(tmp_path / "bad")]) == 2
    assert "line 1: not JSON" in capsys.readouterr().err
    assert main(["bench", "replay", "--prices", str(tmp_path / "bad")]) == 2
    assert "not JSON" in capsys.readouterr().err


def _layouts(flags: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Each layout's caches by name."""
    assert main(["bench", "layouts", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["layout"]: {cache["cache"]: cache for cache in row["caches"]} for row in found["layouts"]}


def test_layouts_lose_what_their_names_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Two made runs with the same rules and tools: only what stands before a layout's fault is cached."""
    by = _layouts(["--runs", "made", "--sessions", "2", "--turns", "12"], capsys)
    hits = {name: caches["deeproot"]["hit_rate"] for name, caches in by.items()}
    assert hits["append-only log"] > 0.85
    # The plain template has the tools first, 530 tokens: they are still cached, and nothing else.
    assert hits["timestamp at index 0"] < 0.15
    assert hits["profile changes each turn"] < 0.15
    assert hits["tools shuffled"] < 0.1
    assert hits["three zones"] > hits["sliding window"]
    # A marked prefix that ends in a text that grows is never found again.
    claude = next(name for name in by["history as text"] if name.startswith("claude"))
    assert by["history as text"][claude]["hit_rate"] < by["append-only log"][claude]["hit_rate"]


def test_layouts_of_a_recorded_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "layouts", "--file", str(TRAJECTORY)]) == 0
    assert "| append-only log" in capsys.readouterr().out
    assert main(["bench", "layouts", "--file", str(tmp_path / "none.db")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["bench", "layouts", "--file", str(TRAJECTORY), "--budget", "10"]) == 2
    assert "budget" in capsys.readouterr().err
