"""`deeproot bench` from its command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from deeproot.bench.cachesim import examples, injection
from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.layouts import ablations
from deeproot.bench.cachesim.turns import measured_ttft
from deeproot.bench.cachesim.worked_runs import SKILLS, worked_run
from deeproot.bench.live.client import Answer
from deeproot.bench.prefill.rig import Rig
from deeproot.bench.working_set import byte_tokenizer
from deeproot.kernels import devices
from deeproot.runtime import bench_flags
from deeproot.runtime.cli import main
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.options import EngineOptions

from ...runtime.tiny_model import write_tiny_model

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
    taken = {metric["name"]: metric["samples"][0] for metric in found["metrics"]}
    prompts = {row[0]: int(row[1].replace(",", "")) for row in found["tables"][0]["rows"]}
    assert list(prompts)[:3] == ["deeproot", "vLLM", "SGLang"]
    for cache, prompt in prompts.items():
        assert taken[f"hit rate, {cache}"] == pytest.approx(1 - taken[f"computed, {cache}"] / prompt)
        assert (f"price, {cache}" in taken) is (cache not in ("deeproot", "vLLM", "SGLang"))
    assert main(flags) == 0
    assert "agents, first 2, seed 1" in capsys.readouterr().out
    (tmp_path / "bad").write_text("{")
    assert main(["bench", "replay", "--file", str(tmp_path / "bad")]) == 2
    assert "line 1: not JSON" in capsys.readouterr().err
    assert main(["bench", "replay", "--prices", str(tmp_path / "bad")]) == 2
    assert "not JSON" in capsys.readouterr().err


def _layouts(flags: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Every quantity of a result."""
    assert main(["bench", "layouts", "--json", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    return {metric["name"]: metric["samples"][0] for metric in found["metrics"]}


def test_layouts_lose_what_their_names_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Two made runs with the same rules and tools: only what stands before a layout's fault is cached."""
    found = _layouts(["--runs", "made", "--quick"], capsys)
    hits = {name.split(", ", 1)[1]: share for name, share in found.items() if name.startswith("hit rate")}
    assert hits["append-only log: deeproot"] > 0.85
    # The plain template has the tools first, 530 tokens: they are still cached, and nothing else.
    assert hits["timestamp at index 0: deeproot"] < 0.15
    assert hits["profile changes each turn: deeproot"] < 0.15
    assert hits["tools shuffled: deeproot"] < 0.1
    assert hits["three zones: deeproot"] > hits["sliding window: deeproot"]
    # A marked prefix that ends in a text that grows is never found again.
    claude = "claude-sonnet-4.5, 5 minutes"
    assert hits[f"history as text: {claude}"] < hits[f"append-only log: {claude}"]
    assert found["TTFT floor, timestamp at index 0"] > 4 * found["TTFT floor, append-only log"]
    assert not any(name.startswith("TTFT,") for name in found)
    assert "three zones + tombstones" not in str(found)  # nothing in these runs becomes stale


def test_layouts_of_worked_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Files change under the agent's eyes: who is told, who is not, and what it costs. One run, with room for all of it."""
    flags = ["--runs", "worked", "--sessions", "1", "--turns", "14", "--seed", "2", "--budget", "60000"]
    found = _layouts([*flags, "--out", str(tmp_path)], capsys)
    stale, unmarked = (
        {name.split(", ", 1)[1]: share for name, share in found.items() if name.startswith(start)}
        for start in ("stale spans", "unmarked stale spans")
    )
    assert stale["append-only log"] == unmarked["append-only log"] > 0
    assert stale["history as text"] == stale["append-only log"]
    assert stale["three zones"] == unmarked["three zones"] > 0
    assert stale["three zones + hard eviction"] == 0
    assert stale["three zones + tombstones"] > 0 == unmarked["three zones + tombstones"]
    assert unmarked["three zones + just-in-time refresh"] == unmarked["three zones + priced choice"] == 0
    computed = {
        name.split(", ", 1)[1].removesuffix(": deeproot"): share
        for name, share in found.items()
        if name.startswith("computed") and name.endswith(": deeproot")
    }
    assert computed["three zones + hard eviction"] > computed["three zones + tombstones"]
    assert computed["skills in the system message"] > computed["skills as a file"]
    assert computed["skills in the system message"] > computed["three zones"]
    assert found["staged, thinking dropped"] < found["staged, three zones"] < found["staged, status appended"]
    assert found["associative facts kept, append-only log"] == 1
    keys = {"cost_and_facts", "hits_by_turn"}
    assert {path.stem for path in tmp_path.glob("*.svg")} == keys


def test_the_ablation(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["bench", "layouts", "--ablate", "--runs", "worked", "--sessions", "1", "--turns", "10", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["tables"][-1]["title"].startswith("Injection")
    worth = found["tables"][0]
    assert worth["title"].startswith("What each part was worth")
    rows = {row[0]: [float(cell.rstrip("%")) for cell in row[1:4]] for row in worth["rows"]}
    assert rows.keys() == {layout.name for layout in ablations()[1:]}
    assert [row[0] for row in rows.values()] == sorted((row[0] for row in rows.values()), reverse=True)
    assert rows["tools in no order"][2] > 100
    assert rows["no tool descriptions"][1] < 0
    assert rows["no envelopes"][1] < 0
    assert rows["no status"][1] < 0


def test_no_attack_gets_through_the_structure() -> None:
    tried = injection.try_all()
    assert len(tried) == 3 * 4
    for one in tried:
        # Not one control token, and not one envelope: whatever the defence.
        assert (one.smuggled, one.broke_out) == (0, 0)
        assert one.warned is one.defence.warns
        assert one.named is (one.defence.marks and one.attack != "direct")
    answers = [Answer("s", 1, 0.0, said=injection.CANARY)] * 11 + [Answer("s", 1, 0.0, error="gone")]
    obeyed = [row[-1] for row in injection.table(tried, answers).rows]
    assert obeyed == ["yes"] * 11 + ["failed: gone"]
    assert {row[-1] for row in injection.table(tried, None).rows} == {"not measured"}


def test_a_naive_prompt_would_be_broken() -> None:
    """The payload is one: spelled into a template without care, its marks become control tokens."""
    tokens = TokenizersAdapter(byte_tokenizer())
    known = {added.token_id for added in tokens.added}
    assert sum(int(i) in known for i in tokens.encode(injection._PAYLOAD, parse_special=True)) == 4 - 1


def test_ttft_on_the_engine(tmp_path: Path) -> None:
    """A tiny model of random weights: that it is timed, not how long it takes."""
    model = write_tiny_model(tmp_path / "m", max_position_embeddings=256)
    rig = Rig(
        load_engine(
            EngineOptions(model=str(model), load_format="dummy", kv_cache_memory_bytes=2**20, page_size=16)
        )
    )
    ids = np.arange(200, dtype=np.int32)
    calls = [Call("s", 0.0, ids[:100], ids[100:120]), Call("s", 1.0, ids[:150], ids[150:170])]
    seconds = measured_ttft([*calls, Call("s", 2.0, np.resize(ids, 300))], rig)
    assert seconds is not None
    assert seconds > 0
    # Answers are cached as served ones are: all but the last token.
    assert rig.run([ids]).cached == (169,)
    assert measured_ttft([Call("s", 2.0, np.resize(ids, 300))], rig) is None


def test_runs_are_the_same_each_time_and_hold_what_they_say() -> None:
    one, other = worked_run(3, 30), worked_run(3, 30)
    assert [(e.kind, one.log.payload(e)) for e in one.log.read()] == [
        (e.kind, other.log.payload(e)) for e in other.log.read()
    ]
    assert one.happenings == other.happenings
    happened = list(one.happenings.values())
    assert sum(h.skill is not None for h in happened) == len(SKILLS)
    assert any(h.writes is not None and h.own for h in happened)
    for seq, happening in one.happenings.items():
        text = one.log.text(one.log.event(seq))
        assert ("</think>" in text) is (one.log.event(seq).kind is EventKind.ASSISTANT)
        if happening.shows is not None:
            before = [h.writes for s, h in one.happenings.items() if s < seq and h.writes is not None]
            newest = dict([*one.files.items(), *before])
            assert text == newest[happening.shows]


def test_floors_are_of_devices_that_are_known() -> None:
    assert tuple(devices.DEVICES) == bench_flags.DEVICES


def test_layouts_of_a_recorded_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "layouts", "--file", str(TRAJECTORY)]) == 0
    assert "| append-only log" in capsys.readouterr().out
    assert main(["bench", "layouts", "--file", str(tmp_path / "none.db")]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert main(["bench", "layouts", "--file", str(TRAJECTORY), "--budget", "10"]) == 2
    assert "budget" in capsys.readouterr().err
