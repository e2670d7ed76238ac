"""A replay against a server that runs here with a tiny model."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deeproot.bench.cachesim.mooncake import conversation
from deeproot.bench.live.asks import HIGH_ID
from deeproot.engine.batch import ForwardBatch
from deeproot.runtime.cli import main
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.flight import Pending

from ...runtime.server.harness import Known, RunningServer, running_server
from ...runtime.tiny_model import write_tiny_model
from ..cachesim.blocks import shared_by_blocks
from .messages import MESSAGES


class Letters:
    """The real forward pass, whose every sample is then the letter a: most ids of this large vocabulary have no text."""

    def __init__(self, engine: LoadedEngine) -> None:
        self._forward = engine.scheduler.runner

    def launch(self, batch: ForwardBatch) -> Pending:
        sampled = self._forward.launch(batch).result()
        return Known(replace(sampled, token_ids=np.full_like(sampled.token_ids, 66)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_tiny_model(
        tmp_path_factory.mktemp("live") / "m", vocab_size=HIGH_ID, max_position_embeddings=8192
    )
    options = EngineOptions(
        model=str(model), load_format="dummy", dtype="float32", kv_cache_memory_bytes=2**24, page_size=16
    )
    with running_server(options, wrap=Letters) as running:
        yield running


def replay(server: RunningServer, *more: str) -> list[str]:
    return ["bench", "replay", "--url", f"{server.url}/v1", "--max-tokens", "3", "--rounds", "1", *more]


def metrics_of(found: Mapping[str, Any]) -> dict[str, list[float]]:
    return {metric["name"]: metric["samples"] for metric in found["metrics"]}


def test_block_ids_share_on_the_server_what_they_share(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Counted by the server, one after another, beside a set of block ids and the server's own counters."""
    requests = [r for r in conversation(60) if r.input_length <= 2_000][:8]
    lines = [
        json.dumps(
            {
                "hash_ids": r.hash_ids,
                "input_length": r.input_length,
                "output_length": 2,
                "timestamp": 1000 * i,
            }
        )
        for i, r in enumerate([*requests, *requests[:2]])
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    flags = ["--file", str(trace), "--form", "blocks", "--max-prompt-tokens", "2000", "--sessions", "99"]
    assert main(replay(server, *flags, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    shared = shared_by_blocks([*requests, *requests[:2]])
    # Four tokens of salt stand before each prompt: the first request has none of them, all others have.
    salt = [0] + [4] * (len(shared) - 1)
    total = sum(r.input_length + 4 for r in [*requests, *requests[:2]])
    expected = (sum(shared) + sum(salt)) / total
    (share,) = metrics_of(found)["cached share of prompts, server"]
    assert share == pytest.approx(expected)
    cached = next(table for table in found["tables"] if table["title"] == "Cached tokens")["rows"][0]
    assert cached[2] == cached[5] == f"{round(expected * total):,}"
    assert cached[4] == "deeproot"
    assert float(cached[7].rstrip("%")) / 100 == pytest.approx(
        sum(shared) / (total - 4 * len(shared)), abs=1e-3
    )


def test_two_servers_in_turns(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"messages": MESSAGES}, {"messages": MESSAGES}]))
    pair = [f"{server.url}/v1=one", f"{server.url}/v1/=two"]
    flags = ["bench", "replay", "--file", str(log), "--form", "runs", "--compare", *pair, "--max-tokens", "4"]
    out = tmp_path / "out"
    before = server.metrics()
    assert (
        main(
            [
                *flags,
                "--rounds",
                "3",
                "--concurrency",
                "2",
                "--gaps",
                "recorded",
                "--speed",
                "1000",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "TTFT, two over one" in shown
    found = json.loads((out / "result.json").read_text())
    taken = metrics_of(found)
    for name in ("one", "two"):
        assert len(taken[f"TTFT, {name}"]) == 3 * 4
        assert len(taken[f"goodput, {name}"]) == 3
        assert min(taken[f"TTFT, {name}"]) > 0
    by_turn = next(chart for chart in found["charts"] if chart["key"] == "ttft_by_turn")
    assert [[x for x, _ in line["points"]] for line in by_turn["lines"]] == [[1, 2], [1, 2]]
    assert "ttft_by_turn.png" in {path.name for path in out.iterdir()}
    asked = server.metrics()
    prompt = sum(asked[key] - before[key] for key in asked if key == "deeproot_prompt_tokens_total")
    rows = next(table for table in found["tables"] if table["title"] == "Cached tokens")["rows"]
    assert sum(int(row[1].replace(",", "")) for row in rows) == prompt


@pytest.mark.parametrize("workload", ["agents", "mooncake", "airline"])
def test_the_quick_form_of_each_workload(
    workload: str, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--max-prompt-tokens", "200", "--arrivals", "poisson", "--rate", "200"]
    if workload == "airline":
        short = ["--sessions", "1", "--turns", "2"]
    assert main(replay(server, "--workload", workload, *short, "--quick", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < len(metrics_of(found)["TTFT, server"]) <= 12
    load = "Closed load" if workload == "airline" else "Open load"
    assert any(load in note for note in found["notes"])


def test_a_server_that_refuses_everything_is_said_so(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(replay(server, "--sessions", "1", "--quick", "--served-model", "another")) == 2
    assert "every request failed; the first: status 404" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--url", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1/models does not answer"),
        (["--url", "127.0.0.1:9"], "give a URL such as"),
        (["--compare", "http://127.0.0.1:9/v1=a", "http://127.0.0.1:9/v1=a"], "two servers are called 'a'"),
        (["--url", "http://127.0.0.1:9/v1", "--turns", "500", "--workload", "airline"], "--turns 500"),
    ],
)
def test_what_cannot_be_done_is_named(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "replay", *flags]) == 2
    assert said in capsys.readouterr().err
