"""The benchmark of the whole step, small: the streams are real and whole, and its figures are what they say."""

import json
import os
import time
from pathlib import Path

import pytest
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.whole_step.__main__ import Sample, cpu_time, main, table


def test_streams_through_all_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    counts, out = ("1", "3"), tmp_path / "result"
    arguments = ("--model", str(model), "--tokens", "60", "--rounds", "1", "--out", str(out))
    assert main([*arguments, "--streams", *counts]) == 0
    record = json.loads(out.with_suffix(".json").read_text())
    assert [sample["streams"] for sample in record["samples"]] == [1, 3]
    for sample in record["samples"]:
        # Of 60 tokens 20 at each end are not measured; streams may be a few apart.
        assert 15 * sample["streams"] <= sample["tokens"] <= 45 * sample["streams"]
        assert 0 < sample["engine_s"] < sample["seconds"] * 4
        assert 0 < sample["server_s"] < sample["seconds"] * 4
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| 1", "| 3"]
    assert out.with_suffix(".md").read_text().endswith("\n".join(lines) + "\n")


def test_figures_of_a_sample() -> None:
    samples = [Sample(8, 800, 1.0, seconds, 2 * seconds, 0.1, 0.2) for seconds in (0.1, 0.05, 0.07)]
    assert [sample.engine_ms for sample in samples] == pytest.approx([1.0, 0.5, 0.7])
    assert [sample.server_us for sample in samples] == pytest.approx([250, 125, 175])
    row = table(samples).splitlines()[2]
    assert row.startswith("| 8 | 0.70 (0.50) | 1 | 175.0 (125.0) | 40 |")


def test_cpu_time_is_that_of_the_process() -> None:
    before = cpu_time(os.getpid())
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert cpu_time(os.getpid()) - before >= 0.05
    time.sleep(0.05)
    assert abs(cpu_time(os.getpid()) - time.process_time()) < 0.05
