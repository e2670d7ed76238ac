"""bench/audit.py measures what it says it does. No times are judged here."""

import json

import pytest

from deeproot.bench import audit as bench


def test_it_audits_a_log_of_that_many_events(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--events", "12", "--rounds", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["events"], found["milestones"], found["constraints"]) == (12, 4, 2)
    assert found["artifacts"] >= 1
    assert found["gates_ms"] > 0


def test_odd_arguments_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--events", "3"])
    assert "at least 8 events" in capsys.readouterr().err
