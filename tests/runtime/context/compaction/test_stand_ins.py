"""Stand-ins in the log: what is written is read back; what is none is named; a cut at any byte leaves old or new."""

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.compaction.stand_in import PART, Level, StandIn, is_stand_in, read_stand_in
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.events import EventKind

from .conftest import MakeCompactor, MakeSet, room, shown
from .runs import chatter, shell, start

numbers = st.sets(st.integers(1, 200), min_size=1, max_size=40)


@given(numbers, st.text(), st.sampled_from(list(Level)), st.text(max_size=20))
def test_what_is_written_is_read_back(covers: set[int], text: str, level: Level, by: str) -> None:
    chosen = tuple(sorted(covers))[: 1 if level.in_place else None]
    made = StandIn(level, chosen, text, by)
    with EventLog.memory() as log:
        log.extend([made.to_event()] * 201)
        event = log.event(201)
        assert is_stand_in(event)
        assert read_stand_in(event, log.payload(event).decode("utf-8", "surrogatepass")) == made


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 400) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@given(anything, anything)
def test_any_other_data_is_read_or_named(covers: object, level: object) -> None:
    with EventLog.memory() as log:
        event = log.append(EventKind.STATE_CHANGE, "x", data={"part": PART, "covers": covers, "level": level})
        with pytest.raises(EventLogError, match="event 1: "):  # nothing comes before event 1
            read_stand_in(event, "x")


@pytest.mark.parametrize(
    "covers", [[[3, 2]], [[1, 2], [2, 3]], [[0, 1]], [[1]], "1-2", [[1, 20]], [[True, 2]]]
)
def test_ranges_that_make_no_sense_are_named(covers: object) -> None:
    with EventLog.memory() as log:
        for _ in range(9):
            log.append(EventKind.ASSISTANT, "x")
        event = log.append(
            EventKind.STATE_CHANGE, "x", data={"part": PART, "covers": covers, "level": "episode"}
        )
        with pytest.raises(EventLogError, match="event 10: covers is "):
            read_stand_in(event, "x")


def test_one_message_in_place() -> None:
    with pytest.raises(ValueError, match="a cleared stand-in covers one event, not 2"):
        StandIn(Level.CLEARED, (1, 2), "x", "y")
    with pytest.raises(ValueError, match="ascending"):
        StandIn(Level.EPISODE, (2, 1), "x", "y")


def written(path: Path) -> EventLog:
    log = EventLog.open(path, clock=lambda: 1_700_000_000_000_000_000)
    start(log)
    for i in range(18):
        shell(log, i, f"make part{i}", chatter(i, 80), exit_code=i % 4)
    return log


def test_a_power_cut_at_any_byte_leaves_the_old_prompt_or_the_new(
    tmp_path: Path, make_compactor: MakeCompactor, make_set: MakeSet
) -> None:
    path = tmp_path / "run.db"
    log = written(path)
    wal = path.with_name("run.db-wal")
    size_before, old = wal.stat().st_size, shown(make_set(), log)
    assert room(make_compactor(), log).status is Status.COMPACTED
    new = shown(make_set(), log)
    database, journal = path.read_bytes(), wal.read_bytes()
    log.close()
    assert old != new
    assert len(journal) > size_before
    rng = random.Random(3)
    cuts = {
        size_before,
        len(journal) - 1,
        len(journal),
        *(rng.randrange(size_before, len(journal)) for _ in range(25)),
    }
    seen = []
    for cut in sorted(cuts):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "run.db").write_bytes(database)
        (folder / "run.db-wal").write_bytes(journal[:cut])
        with EventLog.open(folder / "run.db") as copy:
            seen.append(shown(make_set(), copy))
            assert seen[-1] == (new if cut == len(journal) else old), cut
    assert set(seen) == {old, new}


KILLED = """
import asyncio, os, signal, sqlite3, sys
sys.path.insert(0, sys.argv[3])
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import GENERIC, ChatTemplate
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

log = EventLog.open(sys.argv[1])
left = int(sys.argv[2])

def count(statement):
    global left
    if statement.startswith(("BEGIN", "INSERT", "COMMIT")):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

made = WorkingSet(policy=AppendOnly(), tokenizer=TokenizersAdapter.from_file(sys.argv[4]), template=ChatTemplate(GENERIC))
log._db.set_trace_callback(count)
outcome = asyncio.run(Compactor(made, budget=9_000).make_room(log))
print(outcome.status, left)
"""


def test_killed_at_each_write(tmp_path: Path, bpe: object, make_set: MakeSet) -> None:
    """SIGKILL before each statement of the swap, the commit included: the log is as before, and works."""
    tokenizer = tmp_path / "tokenizer.json"
    bpe.save(str(tokenizer))  # type: ignore[attr-defined]
    written(tmp_path / "run.db").close()
    with EventLog.open(tmp_path / "run.db") as log:
        old, size = shown(make_set(), log), len(log)

    def run(after: int) -> tuple[int, str, Path]:
        path = tmp_path / f"run{after}.db"
        shutil.copy(tmp_path / "run.db", path)
        command = [
            sys.executable,
            "-c",
            KILLED,
            str(path),
            str(after),
            str(Path(__file__).parent),
            str(tokenizer),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
        return done.returncode, done.stdout + done.stderr, path

    code, said, path = run(10_000)
    assert code == 0, said
    assert said.startswith("compacted")
    writes = 10_000 - int(said.split()[1])
    assert writes >= 6  # begin, stand-ins and their payloads, verdict, commit
    with EventLog.open(path) as log:
        new = shown(make_set(), log)
    assert new != old
    for after in {0, 1, 2, writes // 2, writes - 2, writes - 1}:
        code, said, path = run(after)
        assert code == -signal.SIGKILL, said
        with EventLog.open(path) as log:
            assert len(log) == size
            assert shown(make_set(), log) == old


def test_a_failure_of_the_disk_leaves_the_old(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(log)
    for i in range(18):
        shell(log, i, f"make part{i}", chatter(i, 80))
    old, size = shown(make_set(), log), len(log)
    compactor = make_compactor()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "_insert", full)
        with pytest.raises(OSError, match="no space left"):
            asyncio.run(compactor.make_room(log))
    assert (len(log), shown(make_set(), log)) == (size, old)
    assert room(compactor, log).status is Status.COMPACTED


def test_stand_ins_travel_with_an_exported_log(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(18):
        shell(log, i, f"make part{i}", chatter(i, 80))
    room(make_compactor(), log)
    events = [e for e in log.read() if is_stand_in(e)]
    assert events
    assert all(json.dumps(dict(e.data)) for e in events)
