"""Streams beside a long prompt, against a server that runs here with a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.bench.live.in_turns import FAILED
from deeproot.bench.report.result import read_result
from deeproot.bench.stream_gap import main

from ..runtime.server.harness import RunningServer
from .byte_server import byte_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with byte_server(tmp_path_factory.mktemp("models"), 4096, max_num_batched_tokens=64) as running:
        yield running


def test_gaps_before_and_beside_the_prompt(server: RunningServer, tmp_path: Path) -> None:
    flags = ["--words", "60", "--max-tokens", "600", "--streams", "2", "--rounds", "1"]
    assert main(["--url", f"{server.url}/v1", *flags, "--out", str(tmp_path)]) == 0
    result = read_result(tmp_path / "result.json")
    gaps = {metric.name: metric.samples for metric in result.metrics}
    before, beside = gaps["gap before the prompt, server"], gaps["gap beside the prompt, server"]
    # Pieces that came with one read have no time between them.
    assert min((*before, *beside)) >= 0
    assert min(max(before), max(beside)) > 0
    assert gaps["worst gap of a round, server"] == (max(beside),)
    server.wait_idle()


def test_no_server_is_an_error_that_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == FAILED
    assert "--url" in capsys.readouterr().err
