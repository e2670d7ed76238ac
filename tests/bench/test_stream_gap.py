"""Streams beside a long prompt, against a server that runs here with a tiny model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.bench.report.result import read_result
from deeproot.bench.stream_gap import FAILED, main
from deeproot.runtime.options import EngineOptions

from ..runtime.server.harness import RunningServer, running_server
from ..runtime.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=4096)
    options = EngineOptions(
        model=str(folder),
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=32 * 2**20,
        max_num_seqs=4,
        max_num_batched_tokens=64,
    )
    with running_server(options) as running:
        yield running


def test_gaps_before_and_beside_the_prompt(server: RunningServer, tmp_path: Path) -> None:
    flags = ["--words", "60", "--max-tokens", "160", "--streams", "2", "--rounds", "1"]
    assert main(["--url", f"{server.url}/v1", *flags, "--out", str(tmp_path)]) == 0
    result = read_result(tmp_path / "result.json")
    gaps = {metric.name: metric.samples for metric in result.metrics}
    before, beside = gaps["gap before the prompt, server"], gaps["gap beside the prompt, server"]
    assert min((*before, *beside)) > 0
    assert gaps["worst gap of a round, server"] == (max(beside),)
    server.wait_idle()


def test_no_server_is_an_error_that_says_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == FAILED
    assert "--url" in capsys.readouterr().err
