"""`deeproot measure` as a user runs it."""

import json
from pathlib import Path

import pytest

from deeproot.runtime.cli import main
from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog

from .test_measures import act


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with EventLog.open(tmp_path / "run.db") as log:
        record.constraint(log, "Never edit vendor/.")
        record.constraint(log, "Be careful.")
        record.user(log, "Fix it.")
        act(log, 1, "pytest -q", "1 failed", exit_code=1)
        act(log, 2, "sed -i s/a/b/ vendor/x.c", "")
        record.usage(log, prompt_tokens=80, cached_tokens=60, output_tokens=5, ttft_s=0.25)
        record.outcome(log, True, judge="pytest")
    return tmp_path / "run.db"


def test_the_table_names_every_measure(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["measure", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for expected in (
        "turns, actions, compactions 2, 2, 0",
        "passed after 2 turns, by pytest",
        "S_CR(k), k = 0, 1, … 1.00",
        "0.750, 20 tokens in 1 call(s), median TTFT 0.250 s",
        "constraint 'Never edit vendor/.': 1 violation(s) in 2 action(s)",
        "event 6, turn 2, after 0 compaction(s), constraint in the prompt: changes vendor/x.c",
        "constraint 'Be careful.': cannot be checked mechanically",
        "violating actions at turn <= 10: 0.500 (1 of 2)",
        "TCR_10 1.00",
    ):
        assert expected in out


def test_json_holds_the_same_for_programs(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = tmp_path / "checks.json"
    checks.write_text('{"Be careful.": {"runs_with": ["pytest", "-x"]}}')
    floor = ["--parameters", "7e9", "--layers", "32", "--d-model", "4096"]
    assert main(["measure", str(path), str(path), "--json", "--checks", str(checks), *floor]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tcr"]["10"] == {"part": 2, "whole": 2, "value": 1.0}
    first, second = document["logs"]
    assert first == second
    assert first["eps_stale"] == {"part": 0, "whole": 2, "value": 0.0}
    assert first["replayed"]["floor_s"] > 0
    assert (
        first["replayed"]["computed_tokens"] + first["replayed"]["cached_tokens"]
        == first["replayed"]["prompt_tokens"]
    )
    assert [len(each["violations"]) for each in first["probe"]["constraints"]] == [1, 1]
    assert first["probe"]["by_compactions"] == {"0": {"part": 2, "whole": 2, "value": 1.0}}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["gone.db"], "gone.db: there is no such file"),
        (["{log}", "--policy", "three_zones"], "--policy three_zones needs --budget"),
        (["{log}", "--policy", "append_only", "--budget", "3"], "tokens for a budget of 3"),
        (["{log}", "--tokenizer", "gone.json"], "gone.json"),
        (["{log}", "--checks", "gone.json"], "gone.json"),
        (["{log}", "--checks", "{log}"], "--checks"),
        (["{log}", "--layers", "3"], "give all three or none"),
        (
            ["{log}", "--layers", "3", "--d-model", "3", "--parameters", "3", "--device", "abacus"],
            "device is 'abacus'",
        ),
        (["{log}", "--cache-increment", "1", "--cache-ttl", "0"], "prices.ttl_s is 0"),
        (["{other}"], "not an event log"),
    ],
)
def test_what_is_amiss_is_said_in_a_line(
    flags: list[str], says: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.db"
    other.write_text("no database " * 100)
    assert main(["measure", *(flag.format(log=path, other=other) for flag in flags)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err
    assert captured.err.startswith("deeproot measure: ")


def test_an_empty_log_has_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EventLog.open(tmp_path / "empty.db"):
        pass
    assert main(["measure", str(tmp_path / "empty.db")]) == 0
    out = capsys.readouterr().out
    assert "0, 0, 0" in out
    assert "task completion is not known" in out
