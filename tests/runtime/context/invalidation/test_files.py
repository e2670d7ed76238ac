"""What can happen to a file, on a real file system: each change is found, and nothing else is."""

import os
import time
from pathlib import Path

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Cause, Invalidator
from deeproot.runtime.context.invalidation.look import RACY_NS, look

from .looking import settle, show, states


def test_untouched_files_stay_valid_and_are_not_read_again(
    tmp_path: Path, invalidator: Invalidator, log: EventLog
) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    show(invalidator, log, path)
    settle(invalidator)
    first = look(file_entity(path))
    assert first.settled
    assert look(file_entity(path), first) is first
    os.utime(path)
    assert states(invalidator) == {}, "touched, but the bytes are the same"


def test_edit_by_somebody_else(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    path.write_text("two!")
    (found,) = invalidator.check()
    assert (found.seq, found.state, found.causes) == (seq, State.STALE, (Cause(file_entity(path), None),))
    path.write_text("one")
    assert states(invalidator) == {}, "as it was shown again"


def test_own_write_is_told_from_others(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path in (mine, other):
        path.write_text("one")
    seq, their_seq = show(invalidator, log, mine), show(invalidator, log, other)
    call = record.assistant(log, "I edit it.")
    mine.write_text("two")
    other.write_text("two")
    assert {f.seq: f.causes for f in invalidator.wrote([mine], call)} == {
        seq: (Cause(file_entity(mine), call),)
    }
    assert {f.seq: f.causes[0].by for f in invalidator.check()} == {seq: call, their_seq: None}
    after = show(invalidator, log, mine)
    assert after not in states(invalidator)
    mine.write_text("three")
    assert {f.seq: f.causes[0].by for f in invalidator.check()} == {seq: None, their_seq: None, after: None}


def test_rename(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    settle(invalidator)
    path.rename(tmp_path / "b")
    assert states(invalidator) == {seq: State.STALE}


def test_another_file_renamed_over_it(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path, other, same = (tmp_path / name for name in ("a", "b", "c"))
    path.write_text("one")
    other.write_text("two")
    same.write_text("one")
    seq = show(invalidator, log, path)
    settle(invalidator)
    same.rename(path)
    assert states(invalidator) == {}, "another inode, the same bytes"
    other.rename(path)
    assert states(invalidator) == {seq: State.STALE}


def test_delete_and_create_again(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    settle(invalidator)
    path.unlink()
    assert states(invalidator) == {seq: State.STALE}
    path.write_text("one")
    assert states(invalidator) == {}
    path.unlink()
    path.write_text("owe")
    assert states(invalidator) == {seq: State.STALE}


def test_symlink_that_is_led_elsewhere(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "link"
    link.symlink_to("one")
    seq = show(invalidator, log, link)
    settle(invalidator)
    link.unlink()
    link.symlink_to("two")
    assert states(invalidator) == {seq: State.STALE}
    link.unlink()
    link.symlink_to("nowhere")
    assert states(invalidator) == {seq: State.STALE}


def test_own_write_through_a_symlink(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    (tmp_path / "dir").mkdir()
    path = tmp_path / "dir" / "a"
    path.write_text("one")
    (tmp_path / "link").symlink_to("dir")
    by_link, by_name = show(invalidator, log, tmp_path / "link" / "a"), show(invalidator, log, path)
    call = record.assistant(log, "I edit it.")
    (tmp_path / "link" / "a").write_text("two")
    assert {f.seq: f.causes[0].by for f in invalidator.wrote([tmp_path / "link" / "a"], call)} == {
        by_link: call,
        by_name: call,
    }
    assert invalidator.showing(path) == invalidator.showing(tmp_path / "link" / "a") == [by_link, by_name]


def test_own_delete_through_a_symlink(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a").write_text("one")
    (tmp_path / "link").symlink_to("dir")
    seq = show(invalidator, log, tmp_path / "dir" / "a")
    call = record.assistant(log, "I remove it.")
    (tmp_path / "link" / "a").unlink()
    assert [(f.seq, f.causes[0].by) for f in invalidator.wrote([tmp_path / "link" / "a"], call)] == [
        (seq, call)
    ]


def test_hard_link(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("shared")
    two.hardlink_to(one)
    seq = show(invalidator, log, one)
    settle(invalidator)
    call = record.assistant(log, "I edit the other name.")
    with two.open("r+") as file:
        file.write("SHARED")
    assert [(f.seq, f.causes[0].by) for f in invalidator.wrote([two], call)] == [(seq, call)]
    assert invalidator.showing(two) == [seq]


def test_edit_with_the_same_size_and_mtime(tmp_path: Path, invalidator: Invalidator, log: EventLog) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    seq = show(invalidator, log, path)
    settle(invalidator)
    before = path.stat()
    with path.open("r+") as file:
        file.write("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (
        before.st_size,
        before.st_mtime_ns,
        before.st_ino,
    )
    assert states(invalidator) == {seq: State.STALE}


def test_edit_within_one_tick_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the file system stands still, so that stat shows nothing: a fresh file is hashed all the same."""
    path = tmp_path / "a"
    path.write_text("one")
    frozen = path.stat()
    entity = file_entity(path)
    monkeypatch.setattr(os, "stat", lambda *_args, **_options: frozen)
    monkeypatch.setattr(os, "fstat", lambda *_args: frozen)
    monkeypatch.setattr(time, "time_ns", lambda: frozen.st_ctime_ns + RACY_NS)
    first = look(entity)
    assert not first.settled
    path.write_text("two")
    second = look(entity, first)
    assert second.identity != first.identity
    monkeypatch.setattr(time, "time_ns", lambda: frozen.st_ctime_ns + RACY_NS + 1)
    third = look(entity, second)
    assert third.settled
    assert look(entity, third) is third
