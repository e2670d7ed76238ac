"""Sources without versions, sources of the host's own, conclusions, and what a restart knows."""

from pathlib import Path

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import (
    Entity,
    EntityKind,
    diag_entity,
    file_entity,
    proc_entity,
)
from deeproot.runtime.context.invalidation.graph import State
from deeproot.runtime.context.invalidation.invalidator import Invalidator

DB = Entity(EntityKind.DB, "users/schema")
ENDPOINT = Entity(EntityKind.ENDPOINT, "http://localhost/health")
S = 1_000_000_000


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * S

    def __call__(self) -> int:
        return self.now


def states(invalidator: Invalidator) -> dict[int, State]:
    return {finding.seq: finding.state for finding in invalidator.check()}


def test_time_decides_only_where_there_is_no_version() -> None:
    log, clock, version = EventLog.memory(), Clock(), ["1"]
    invalidator = Invalidator(log, probes={EntityKind.DB: lambda _: version[0]}, clock=clock)
    schema, health = record.tool_result(log, "c", "schema"), record.tool_result(log, "d", "healthy")
    invalidator.bind(schema, invalidator.reading([DB]))
    invalidator.bind(health, invalidator.reading([ENDPOINT]))
    clock.now += 29 * S
    assert states(invalidator) == {}
    clock.now += 1 * S
    assert states(invalidator) == {health: State.STALE}
    clock.now += 1_000_000 * S
    assert states(invalidator) == {health: State.STALE}
    version[0] = "2"
    assert states(invalidator) == {schema: State.STALE, health: State.STALE}
    version[0] = "1"
    assert states(invalidator) == {health: State.STALE}


def test_a_probe_that_knows_no_version_leaves_it_to_time() -> None:
    log, clock = EventLog.memory(), Clock()
    invalidator = Invalidator(
        log, probes={EntityKind.DB: lambda _: None}, ttl_s={EntityKind.DB: 5}, clock=clock
    )
    seq = record.tool_result(log, "c", "rows")
    invalidator.bind(seq, invalidator.reading([DB]))
    assert states(invalidator) == {}
    clock.now += 5 * S
    assert states(invalidator) == {seq: State.STALE}


def test_a_conclusion_is_dirty_while_the_copy_is_stale(tmp_path: Path) -> None:
    header, unit = tmp_path / "nic.h", tmp_path / "nic.c"
    for path in (header, unit):
        path.write_text("one")
    log = EventLog.memory()
    invalidator = Invalidator(log)
    read = record.tool_result(log, "c", "one")
    invalidator.bind(read, invalidator.reading([file_entity(header)]))
    build = record.tool_result(log, "d", "warning", exit_code=0)
    invalidator.replaces(
        diag_entity("make"), build, "0:warning", inputs=invalidator.reading([file_entity(unit)])
    )
    thought = record.diagnostic(log, "the header is wrong")
    invalidator.bind(thought, derived_from=[read, build])
    assert states(invalidator) == {}
    header.write_text("two!")
    assert states(invalidator) == {read: State.STALE, thought: State.DIRTY}
    header.write_text("one")
    unit.write_text("two!")
    assert states(invalidator) == {build: State.DIRTY, thought: State.DIRTY}


def test_a_later_run_makes_what_an_earlier_one_said_stale(tmp_path: Path) -> None:
    path = tmp_path / "test.py"
    path.write_text("one")
    log = EventLog.memory()
    invalidator = Invalidator(log)
    target = diag_entity("pytest test.py")
    runs = []
    for said in ("1:failed", "1:failed", "0:passed"):
        runs.append(record.tool_result(log, "c", said))
        invalidator.replaces(target, runs[-1], said, inputs=invalidator.reading([file_entity(path)]))
    assert states(invalidator) == {runs[0]: State.STALE, runs[1]: State.STALE}
    assert states(Invalidator(log)) == {runs[0]: State.STALE, runs[1]: State.STALE}


def test_a_restart_knows_what_was_bound_and_who_wrote(tmp_path: Path) -> None:
    mine, theirs, same = (tmp_path / name for name in ("mine", "theirs", "same"))
    for path in (mine, theirs, same):
        path.write_text("one")
    with EventLog.open(tmp_path / "run.db") as log:
        invalidator = Invalidator(log)
        seqs = []
        for path in (mine, theirs, same):
            reading = invalidator.reading([file_entity(path)])
            seqs.append(record.tool_result(log, "c", path.read_text()))
            invalidator.bind(seqs[-1], reading)
        call = record.assistant(log, "I edit it.")
        mine.write_text("two!")
        invalidator.wrote([mine], call)
    theirs.write_text("two!")
    with EventLog.open(tmp_path / "run.db") as log:
        found = {f.seq: (f.state, f.causes[0].by) for f in Invalidator(log).check()}
    assert found == {seqs[0]: (State.STALE, call), seqs[1]: (State.STALE, None)}


def test_only_what_the_prompt_shows_is_looked_at(tmp_path: Path) -> None:
    log, asked = EventLog.memory(), []
    invalidator = Invalidator(log, probes={EntityKind.DB: lambda e: asked.append(e.name) or "1"})
    seqs = []
    for name in ("a", "b", "c"):
        seqs.append(record.tool_result(log, "c", name))
        invalidator.bind(seqs[-1], invalidator.reading([Entity(EntityKind.DB, name)]))
    asked.clear()
    invalidator.check(live=[seqs[1], 999])
    assert asked == ["b"]
    invalidator.drop([seqs[0]])
    asked.clear()
    invalidator.check()
    assert asked == ["b", "c"]


def test_what_it_refuses(tmp_path: Path) -> None:
    log = EventLog.memory()
    with pytest.raises(ValueError, match="probes has file"):
        Invalidator(log, probes={EntityKind.FILE: lambda _: "1"})
    invalidator = Invalidator(log, ttl_s={})
    with pytest.raises(ValueError, match="seq is 1; give the number of an event"):
        invalidator.bind(1)
    seq = record.tool_result(log, "c", "x")
    with pytest.raises(ValueError, match="neither a version nor a lifetime"):
        invalidator.bind(seq, invalidator.reading([DB]))
    with pytest.raises(ValueError, match="by is 9"):
        invalidator.wrote([tmp_path], 9)
    with pytest.raises(ValueError, match="give a diag entity"):
        invalidator.replaces(DB, seq, "x", inputs=invalidator.reading([]))
    with pytest.raises(ValueError, match="pid is 0"):
        proc_entity(0)
