"""On a real file system: many files at once, a big one, one that changes while it is read, folders, processes, events."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from blake3 import blake3

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import dir_entity, file_entity, proc_entity
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Invalidator
from deeproot.runtime.context.invalidation.look import look, read_file
from deeproot.runtime.context.invalidation.watch import Watcher

from .looking import settle, show, states


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_a_thousand_files_changed_by_git_checkout(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    paths = [tmp_path / f"f{i}" for i in range(1010)]
    for path in paths:
        path.write_text("old")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "old")
    git(tmp_path, "checkout", "-qb", "new")
    for path in paths[:1000]:
        path.write_text("new")
    git(tmp_path, "commit", "-qam", "new")
    git(tmp_path, "checkout", "-q", "main")
    reading = invalidator.reading(file_entity(path) for path in paths)
    call = record.assistant(log, "I read them all.")
    seqs = [record.tool_result(log, f"c{i}", path.read_text()) for i, path in enumerate(paths)]
    for seq, (entity, version) in zip(seqs, reading.versions.items(), strict=True):
        assert invalidator.bind(seq, type(reading)({entity: version})) is None
    settle(invalidator)
    git(tmp_path, "checkout", "-q", "new")
    assert states(invalidator) == dict.fromkeys(seqs[:1000], State.STALE)
    git(tmp_path, "checkout", "-q", "main")
    found = invalidator.wrote(paths, call)
    assert found == [], "as they were shown again"


def test_a_file_over_100_mb(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.truncate(101_000_000)
    seq = show(invalidator, log, path)
    settle(invalidator)
    with path.open("r+b") as file:
        file.seek(100_500_000)
        file.write(b"x")
    assert states(invalidator) == {seq: State.STALE}


def test_a_file_that_changes_while_a_tool_reads_it(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    reading = invalidator.reading([file_entity(path)])
    seq = record.tool_result(log, "c", path.read_text())
    path.write_text("two")
    found = invalidator.bind(seq, reading)
    assert found is not None
    assert found.state is State.STALE


def test_two_readings_of_which_the_older_is_bound_last(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    old = invalidator.reading([file_entity(path)])
    path.write_text("two!")
    new = invalidator.reading([file_entity(path)])
    first, second = record.tool_result(log, "c", "one"), record.tool_result(log, "d", "two!")
    assert invalidator.bind(second, new) is None
    assert invalidator.bind(first, old) is not None
    assert states(invalidator) == {first: State.STALE}


@pytest.mark.parametrize("changes", [1, 1000])
def test_a_file_that_changes_while_the_host_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """A real file grows each time between the look at it and the reading of it: it is read again, and if it never
    holds still, what was read is not trusted."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    os.utime(path, ns=(0, 0))
    left, real = [changes], os.fstat

    def look_then_grow(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        if left[0]:
            left[0] -= 1
            with path.open("ab") as file:
                file.write(b".")
        return found

    monkeypatch.setattr(os, "fstat", look_then_grow)
    data, version = read_file(path)
    looked = look(file_entity(path))
    monkeypatch.undo()
    assert version.identity == blake3(data).hexdigest()
    if changes == 1:
        assert data == b"one."
        assert looked.identity == version.identity
    else:
        assert (version.settled, looked.settled) == (False, False)
    assert look(file_entity(path), looked).identity == blake3(path.read_bytes()).hexdigest()


def test_a_pipe_or_folder_in_the_place_of_a_file(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    path.unlink()
    os.mkfifo(path)
    assert states(invalidator) == {seq: State.STALE}
    path.unlink()
    path.mkdir()
    assert states(invalidator) == {seq: State.STALE}
    with pytest.raises(OSError, match=r"regular|directory"):
        read_file(path)


def test_entries_of_a_directory(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    (tmp_path / "a").write_text("one")
    seq = record.tool_result(log, "c", "a")
    assert invalidator.bind(seq, invalidator.reading([dir_entity(tmp_path)])) is None
    settle(invalidator)
    (tmp_path / "a").write_text("two")
    assert states(invalidator) == {}, "the names are the same"
    call = record.assistant(log, "I make another.")
    (tmp_path / "b").write_text("")
    assert [(f.seq, f.causes[0].by) for f in invalidator.wrote([tmp_path / "b"], call)] == [(seq, call)]
    (tmp_path / "b").unlink()
    assert states(invalidator) == {}
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    assert states(invalidator) == {seq: State.STALE}, "a file became a folder"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the platform shows no /proc")
def test_a_process_that_ends(invalidator: Invalidator, log: EventLog) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        seq = record.tool_result(log, "c", "Job 412: Running")
        assert invalidator.bind(seq, invalidator.reading([proc_entity(process.pid)])) is None
        assert states(invalidator) == {}
        process.terminate()
    assert states(invalidator) == {seq: State.STALE}


def test_file_events_are_queued_and_hashed_at_the_next_check(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    settle(invalidator)
    with Watcher([tmp_path], invalidator.notify):
        wait_for_event(path, invalidator)
    assert invalidator.findings() == []
    assert states(invalidator) == {seq: State.STALE}
    assert invalidator.notified == 0


def wait_for_event(path: Path, invalidator: Invalidator) -> None:
    """Write until somebody notices: a watcher takes a moment to begin."""
    end = time.monotonic() + 60
    while not invalidator.notified:
        assert time.monotonic() < end, "no file event came within a minute"
        path.write_text("two")
        time.sleep(0.05)


def test_a_watcher_of_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is no folder"):
        Watcher([tmp_path / "none"], lambda paths: None)


def test_own_delete_of_the_folder_above(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "srcs").mkdir()
    for folder in ("src", "srcs"):
        (tmp_path / folder / "a").write_text("one")
    seq = show(invalidator, log, tmp_path / "src" / "a")
    show(invalidator, log, tmp_path / "srcs" / "a")
    call = record.assistant(log, "I move it.")
    (tmp_path / "src").rename(tmp_path / "lib")
    found = invalidator.wrote([tmp_path / "src", tmp_path / "lib"], call)
    assert [(f.seq, f.causes[0].by) for f in found] == [(seq, call)]
