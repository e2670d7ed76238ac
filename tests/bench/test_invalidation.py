"""bench/invalidation.py: its list is the committed one, and its check counts what it finds."""

from pathlib import Path

from deeproot.bench import invalidation as bench

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "runtime" / "context" / "fixtures" / "sweagent_pydicom_1458.traj.json"


def test_the_committed_list_is_what_the_run_gives() -> None:
    committed = (ROOT / "bench" / "results" / "stale_edits.md").read_text(encoding="utf-8")
    assert bench.table([(RUN.name, bench.edits_of(RUN))]) in committed


def test_every_check_finds_what_changed(tmp_path: Path) -> None:
    found = bench.time_checks(tmp_path, files=120, rounds=3)
    assert (found["files"], found["rounds"]) == (120, 3)
