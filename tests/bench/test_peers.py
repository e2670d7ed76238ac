"""Two servers asked in turns: each figure of each is there, and is what the client saw."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.bench.live.in_turns import FAILED
from deeproot.bench.peers import UNITS, main, prefill_name, table
from deeproot.bench.report.result import read_result

from ..runtime.server.harness import RunningServer
from .byte_server import byte_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with byte_server(tmp_path_factory.mktemp("models"), 32768, max_num_seqs=8) as running:
        yield running


def test_every_figure_of_both(server: RunningServer, tmp_path: Path) -> None:
    base = f"{server.url}/v1"
    targets = ["--compare", f"{base}=one", f"{base}=other"]
    assert (
        main([*targets, "--lengths", "60", "120", "--turns", "2", "--rounds", "2", "--out", str(tmp_path)])
        == 0
    )
    result = read_result(tmp_path / "result.json")
    names = [*map(prefill_name, (60, 120)), *UNITS]
    assert {metric.name for metric in result.metrics} == {
        f"{name}, {server}" for name in names for server in ("one", "other")
    }
    assert all(len(metric.samples) == 2 and min(metric.samples) > 0 for metric in result.metrics)
    server.wait_idle()


def test_the_last_column_is_against_the_best_of_the_others() -> None:
    def figures(rate: float, wait: float) -> list[dict[str, float]]:
        return [{prefill_name(60): rate} | {n: rate if u == "tok/s" else wait for n, u in UNITS.items()}]

    found = {"ours": figures(300, 20), "slow": figures(50, 90), "best": figures(100, 40)}
    shown = {row[0]: row[-1] for row in table(found, [60]).rows}
    assert shown["prefill of 60, tok/s"] == shown["8 streams, tok/s"] == "3.00"
    assert shown["warm TTFT, ms"] == shown["agent, s"] == "0.50"


def test_no_server_is_an_error_that_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == FAILED
    assert "--url" in capsys.readouterr().err
    assert main(["--url", "http://127.0.0.1:9/v1"]) == FAILED
    assert "is the server up" in capsys.readouterr().err
