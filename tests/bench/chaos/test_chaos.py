"""The chaos run itself, short; and that what it looks for would be found."""

import json
import random
from pathlib import Path

import httpx
import pytest
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.chaos.clients import Known, Wrong, error_of
from deeproot.bench.chaos.run import growth_of, main


def test_three_minutes_among_rude_clients(tmp_path: Path) -> None:
    """So few pages that requests are preempted, so short a queue that some are turned away, and engines that die."""
    model = write_tiny_model(tmp_path / "tiny")
    size = ("--kv-cache-memory-bytes", "400KiB", "--max-model-len", "1024", "--max-num-seqs", "6")
    kind = ("--load-format", "dummy", "--dtype", "float32", "--device", "cpu", "--max-queued-requests", "6")
    report_file = tmp_path / "report.json"
    arguments = ("--minutes", "3", "--clients", "10", "--report", str(report_file), "--")
    code = main([*arguments, "--model", str(model), *size, *kind])
    report = json.loads(report_file.read_text())
    assert report["wrong"] == []
    assert code == 0
    assert report["engine_kills"] + report["stops"] + report["template_kills"] >= 1
    outcomes = report["outcomes"]
    assert outcomes["whole"]["answered"] > 20
    assert outcomes["streamed"]["answered"] > 20
    assert {"cancelled", "left stream", "malformed", "garbage"} <= outcomes.keys()
    assert report["requests"] == sum(sum(counts.values()) for counts in outcomes.values()) > 50
    assert len(report["server_mib"]) > 10


def test_a_wrong_text_is_found() -> None:
    known = Known({("a", 3): "abc"})
    assert known.pick(random.Random(0)) == ("a", 3)
    known.check(("a", 3), "abc")
    with pytest.raises(Wrong, match="wrong text for 'a'"):
        known.check(("a", 3), "abd")


@pytest.mark.parametrize("content", ["", "Internal Server Error", "{}", '{"error": {"message": ""}}', "[]"])
def test_an_error_has_to_say_why(content: str) -> None:
    with pytest.raises(Wrong):
        error_of(httpx.Response(500, text=content))
    error = {"message": "too many", "type": "rate_limit_error", "code": None}
    assert error_of(httpx.Response(429, json={"error": error})) == "429: rate_limit_error"
    assert error_of(httpx.Response(429, json={"error": {**error, "code": "full"}})) == "429: full"


def test_memory_that_grows_is_found() -> None:
    assert growth_of([100 + 4 * i for i in range(100)])
    assert not growth_of([100 + min(i, 20) for i in range(100)])
    assert not growth_of([100, 0, 500, 0] * 10)
    assert not growth_of([100, 900])
