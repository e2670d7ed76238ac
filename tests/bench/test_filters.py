"""The cascade of bench/filters.py on the recorded session."""

import json
import re

import pytest

from deeproot.bench import filters as bench
from deeproot.runtime.context.extract.extract import extract
from deeproot.runtime.context.filters.base import FilterContext
from deeproot.runtime.context.filters.pipeline import Pipeline


def test_no_stage_grows_and_none_is_refused() -> None:
    events = bench.read_session(bench.FIXTURES / "session.jsonl.gz")
    count, name = bench.counter(None)
    assert name == "bytes / 4"
    result = bench.measure_cascade(events, count)
    assert result["raw"] == sum(count(e["output"]) for e in events)
    for variant in ("stale_views_as_pointers", "later_views_as_diffs"):
        part = result[variant]
        steps = [result["raw"], *part["after_each_filter"].values(), part["extracted"], part["skeletons"]]
        assert steps == sorted(steps, reverse=True)
        assert part["refused"] == []
        assert part["ratios"]["all"] > 5


def test_every_failing_test_of_the_session_is_named_after_the_cascade() -> None:
    """Each run names its failing tests at its end; pytest's progress lines name them a second time."""
    events = bench.read_session(bench.FIXTURES / "session.jsonl.gz")
    log = bench.observations(events)
    pipeline = Pipeline(count_tokens=len)
    runs = 0
    for i, event in enumerate(events):
        plain = re.sub(r"\x1b\[[0-9;]*m", "", event["output"])
        named = set(re.findall(r"^FAILED (\S+)", plain, re.M))
        if named:
            runs += 1
            result = extract(pipeline.run(log[i].text, FilterContext(log, i)).text)
            assert named == {d.target for d in result.diagnostics}
            assert all(name in result.text for name in named)
    assert runs == 2


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["cascade"]) == 0
    assert json.loads(capsys.readouterr().out)["source_says"]["ledger"] == 1_200
