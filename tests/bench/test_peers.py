"""Two servers asked in turns: each figure of each is there, and is what the client saw."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deeproot.bench.chaos.server import free_port
from deeproot.bench.live.in_turns import FAILED
from deeproot.bench.peers import PAUSE, UNITS, main, prefill_name, table
from deeproot.bench.report.result import read_result

from ..engine.hf import tiny_llama
from ..runtime.server.harness import RunningServer
from ..runtime.tiny_model import write_tiny_model
from .byte_server import byte_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with byte_server(tmp_path_factory.mktemp("models"), 32768, max_num_seqs=8) as running:
        yield running


def test_every_figure_of_both(server: RunningServer, tmp_path: Path) -> None:
    base = f"{server.url}/v1"
    small = ["--turns", "2", "--gap-tokens", "400"]
    targets = ["--compare", f"{base}=one", f"{base}=other"]
    assert main([*targets, "--lengths", "60", "120", *small, "--rounds", "2", "--out", str(tmp_path)]) == 0
    result = read_result(tmp_path / "result.json")
    names = [*map(prefill_name, (60, 120)), *UNITS]
    assert {metric.name for metric in result.metrics} == {
        f"{name}, {server}" for name in names for server in ("one", "other")
    }
    assert all(len(metric.samples) == 2 and min(metric.samples) > 0 for metric in result.metrics)
    server.wait_idle()


def test_servers_that_are_started_here_and_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = write_tiny_model(tmp_path / "tiny")
    tiny_llama(folder, vocab_size=258)
    base = f"http://127.0.0.1:{(port := free_port())}/v1"
    served = [
        sys.executable,
        "-m",
        "deeproot.bench.transformers_server",
        str(folder),
        str(port),
        "--threads",
        "1",
    ]
    broken = [sys.executable, "-c", "raise SystemExit('no such model')"]
    (tmp_path / "servers.toml").write_text(
        "".join(
            f'[[servers]]\nname = "{name}"\nurl = "{url}"\ncommand = {json.dumps(command)}\nrounds = 1\n'
            for name, url, command in (
                ("broken", f"http://127.0.0.1:{free_port()}/v1", broken),
                ("peer", base, served),
            )
        )
    )
    load = ["--lengths", "30", "60", "--turns", "1", "--rounds", "2", "--gap-tokens", "49"]
    assert main(["--servers", str(tmp_path / "servers.toml"), *load, "--out", str(tmp_path)]) == 0
    result = read_result(tmp_path / "result.json")
    found = {metric.name: metric.samples for metric in result.metrics}
    # It answers one after another, so that the prompt waits until the stream has ended.
    names = {*map(prefill_name, (30, 60)), *UNITS, "start-up", "memory at rest", "busy at rest"} - {PAUSE}
    assert set(found) == {f"{name}, peer" for name in names}
    assert all(len(samples) == 1 for samples in found.values())
    assert found["memory at rest, peer"][0] > 50
    assert "no such model" in capsys.readouterr().err
    assert ["no such model" in note for note in result.notes] == [True]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{base}/models")


def test_the_last_column_is_against_the_best_of_the_others() -> None:
    def figures(rate: float, wait: float) -> list[dict[str, float]]:
        return [{prefill_name(60): rate} | {n: rate if u == "tok/s" else wait for n, u in UNITS.items()}]

    found = {"ours": figures(300, 20), "slow": figures(50, 90), "best": figures(100, 40)}
    shown = {row[0]: row[-1] for row in table(found, [60]).rows}
    assert shown["prefill of 60, tok/s"] == shown["8 streams, tok/s"] == "3.00"
    assert shown["rounds"] == ""
    assert shown["warm TTFT, ms"] == shown["agent, s"] == "0.50"


def test_a_figure_that_a_server_does_not_have() -> None:
    whole = {prefill_name(60): 1.0} | dict.fromkeys(UNITS, 2.0)
    without = {name: value for name, value in whole.items() if name != PAUSE}

    def shown(found: dict[str, list[dict[str, float]]]) -> tuple[str, ...]:
        return next(row[1:] for row in table(found, [60]).rows if row[0].startswith(PAUSE))

    assert shown({"ours": [whole], "serial": [without], "other": [whole, without]}) == ("2", "-", "2", "1.00")
    assert shown({"ours": [without], "other": [whole]}) == ("-", "2", "-")
    assert shown({"ours": [whole], "serial": [without]}) == ("2", "-", "-")


def test_no_server_is_an_error_that_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == FAILED
    assert "--url" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:9/v1"]) == FAILED
    assert "is the server up" in capsys.readouterr().err
