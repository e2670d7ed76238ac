"""The log: what was acknowledged is there, whatever happens to the file; every payload comes back."""

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.event_log import EventLog, EventLogError, NewEvent
from deeproot.runtime.context.events import EventKind


def test_appends_and_reads_back_everything(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    payload = bytes(range(256)) * 3
    with EventLog.open(path, clock=lambda: 17) as log:
        first = log.append(EventKind.TOOL_RESULT, payload, data={"b": 1, "a": [2]}, call_id="c1", exit_code=2)
        log.append(EventKind.ASSISTANT, "text", time_ns=5)
    with EventLog.open(path) as log:
        events = list(log.read())
        assert [e.seq for e in events] == [1, 2]
        assert events[0] == first
        assert list(events[0].data) == ["b", "a"]
        assert (events[0].time_ns, events[1].time_ns) == (17, 5)
        assert log.payload(events[0]) == payload
        assert log.payload(first.payload_hash[:12]) == payload
        assert log.text(events[1]) == "text"
        assert log.append(EventKind.ASSISTANT, "third").seq == 3
        assert [e.seq for e in log.read(2, 3)] == [2]
        assert log.event(3).kind is EventKind.ASSISTANT


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(list(EventKind)), st.binary(max_size=40)), max_size=12))
def test_any_payloads_come_back(pairs: list[tuple[EventKind, bytes]]) -> None:
    with EventLog.memory() as log:
        log.extend([NewEvent(kind, payload) for kind, payload in pairs])
        assert [(e.kind, log.payload(e)) for e in log.read()] == pairs


def test_a_failed_batch_leaves_nothing() -> None:
    with EventLog.memory() as log:
        with pytest.raises(EventLogError, match="data of a tool_result event is not JSON"):
            log.extend(
                [NewEvent(EventKind.ASSISTANT, "a"), NewEvent(EventKind.TOOL_RESULT, "b", {"x": object()})]
            )
        assert len(log) == 0
        assert list(log.read()) == []


def test_two_connections_share_one_numbering(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "run.db") as one, EventLog.open(tmp_path / "run.db") as other:
        seqs = [log.append(EventKind.ASSISTANT, str(i)).seq for i, log in enumerate([one, other, one, other])]
        assert seqs == [1, 2, 3, 4]
        assert [one.text(e) for e in one.read()] == ["0", "1", "2", "3"]


def test_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(EventLogError, match="text: not an event log"):
        EventLog.open(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    with pytest.raises(EventLogError, match="a database of another program"):
        EventLog.open(tmp_path / "other.db")
    assert (tmp_path / "other.db").read_bytes() == before
    with pytest.raises(EventLogError, match="cannot be opened"):
        EventLog.open(tmp_path / "no" / "such.db")
    with EventLog.memory() as log:
        with pytest.raises(EventLogError, match="no event 1"):
            log.event(1)
        with pytest.raises(EventLogError, match="no payload"):
            log.payload("00000000")
        with pytest.raises(EventLogError, match="is no BLAKE3"):
            log.payload("xyz")


def _write_log(path: Path) -> tuple[list[tuple[int, bytes]], bytes, bytes]:
    """(WAL size when acknowledged, payload) of each event, and the files as a power cut would leave them."""
    rng = random.Random(7)
    log = EventLog.open(path)
    wal = path.with_name(path.name + "-wal")
    acknowledged = []
    for i in range(60):
        payload = rng.randbytes(rng.choice([0, 10, 300, 5000, 20_000]))
        log.append(EventKind.TOOL_RESULT, payload, call_id=f"c{i}", exit_code=i)
        acknowledged.append((wal.stat().st_size, payload))
    files = path.read_bytes(), wal.read_bytes()
    log.close()
    return acknowledged, *files


def _survivors(folder: Path, database: bytes, wal: bytes) -> list[bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "copy.db").write_bytes(database)
    (folder / "copy.db-wal").write_bytes(wal)
    with EventLog.open(folder / "copy.db") as log:
        events = list(log.read())
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert [e.exit_code for e in events] == list(range(len(events)))
        return [log.payload(e) for e in events]


def test_a_wal_cut_at_any_byte_keeps_exactly_what_was_acknowledged(tmp_path: Path) -> None:
    acknowledged, database, wal = _write_log(tmp_path / "run.db")
    # Within one run the WAL only grows: no checkpoint has moved events to the main file.
    sizes = [size for size, _ in acknowledged]
    assert sizes == sorted(sizes)
    assert len(wal) == sizes[-1]
    rng = random.Random(11)
    cuts = {0, len(wal), *sizes[::10], *(size - 1 for size in sizes[::10])}
    while len(cuts) < 500:
        cuts.add(rng.randrange(len(wal)))
    for cut in sorted(cuts):
        expected = [payload for size, payload in acknowledged if size <= cut]
        assert _survivors(tmp_path / "cut", database, wal[:cut]) == expected, cut


def test_garbage_behind_the_cut_changes_nothing(tmp_path: Path) -> None:
    acknowledged, database, wal = _write_log(tmp_path / "run.db")
    rng = random.Random(13)
    for _ in range(40):
        cut = rng.randrange(len(wal))
        garbage = rng.randbytes(rng.randrange(1, 9000))
        expected = [payload for size, payload in acknowledged if size <= cut]
        assert _survivors(tmp_path / "cut", database, wal[:cut] + garbage) == expected, cut


def test_a_cut_after_a_checkpoint_keeps_a_prefix_and_all_that_was_checkpointed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    log = EventLog.open(path)
    rng = random.Random(17)
    payloads = [rng.randbytes(30_000) for _ in range(170)]
    for i, payload in enumerate(payloads):
        log.append(EventKind.TOOL_RESULT, payload, exit_code=i)
    database, wal = path.read_bytes(), path.with_name("run.db-wal").read_bytes()
    log.close()
    checkpointed = len(_survivors(tmp_path / "cut", database, b""))
    assert 0 < checkpointed < len(payloads)
    assert _survivors(tmp_path / "cut", database, wal) == payloads
    lengths = set()
    for _ in range(30):
        kept = _survivors(tmp_path / "cut", database, wal[: rng.randrange(len(wal))])
        assert kept == payloads[: len(kept)]
        assert len(kept) >= checkpointed
        lengths.add(len(kept))
    assert len(lengths) > 3
