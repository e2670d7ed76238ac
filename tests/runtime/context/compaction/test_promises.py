"""What compaction promises whatever the strategy: marks, whole exchanges, instructions, replay."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.checkpointing import StructuredCheckpoint
from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.compaction.layers import default_layers
from deeproot.runtime.context.compaction.strategies import (
    CITED,
    JOINT,
    PER_RESULT,
    QUERY_AWARE,
    WINDOWED,
)
from deeproot.runtime.context.compaction.strategy import Strategy
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.jsonl import export_lines, import_lines
from deeproot.runtime.context.three_zones import ThreeZones

from ..agent_turns import whole_exchanges
from .conftest import BUDGET, MakeCompactor, MakeSet, room, shown
from .runs import CONSTRAINTS, chatter, shell, start

OFFLINE = [PER_RESULT, JOINT, QUERY_AWARE, CITED, WINDOWED, StructuredCheckpoint()]


@pytest.mark.parametrize(
    ("strategy", "zones"),
    [*((s, True) for s in OFFLINE), (JOINT, False)],
    ids=lambda v: getattr(v, "name", str(v)),
)
def test_a_long_run_stays_between_the_marks(
    strategy: Strategy, zones: bool, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set(ThreeZones(BUDGET) if zones else None)
    compactor = make_compactor(working_set, strategy)
    batches = 0
    for i in range(40):
        outcome = room(compactor, log, incoming=1200)
        batches += outcome.status is Status.COMPACTED
        assert outcome.status in (Status.FITS, Status.COMPACTED), outcome
        shell(log, i, f"ls {i}", chatter(i))
        context = working_set.assemble(log)
        assert context.token_ids.size < BUDGET
        assert whole_exchanges(context)
        assert not [drop for drop in context.report.dropped if drop.why.startswith("archived")]
    assert batches == compactor.compactions(log)
    assert 2 <= batches <= 9
    assert all(constraint in shown(working_set, log) for constraint in CONSTRAINTS)


def test_replay_and_restart_give_the_same_bytes(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    """Every call of a run, made again from a copy of the log by a working set that knows nothing of compaction."""
    start(log)
    working_set = make_set(ThreeZones(BUDGET))
    compactor = make_compactor(working_set)
    calls = []
    for i in range(30):
        room(compactor, log)
        shell(log, i, f"ls {i % 7}", chatter(i % 7), exit_code=i % 5)
        context = working_set.assemble(log)
        calls.append((len(log), context.token_ids.tolist(), context.messages))
    copy = EventLog.memory()
    import_lines(copy, export_lines(log))
    fresh = make_set(ThreeZones(BUDGET))
    for upto, ids, messages in calls:
        again = fresh.assemble(copy, upto=upto)
        assert again.messages == messages
        assert again.token_ids.tolist() == ids


def test_between_compactions_each_call_extends_the_last(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set)
    last: Sequence[object] = ()
    for i in range(40):
        compacted = room(compactor, log).swapped
        shell(log, i, f"ls {i}", chatter(i))
        messages = working_set.assemble(log).messages
        if not compacted:
            assert messages[: len(last)] == tuple(last)
        last = messages


@pytest.mark.parametrize("strategy", OFFLINE, ids=lambda s: s.name)
def test_anchors_and_users_words_stay_as_they_were(
    strategy: Strategy, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    shell(log, 0, "pytest -q", "FAILED tests/test_auth.py::test_jwt - assert 401 == 200\n1 failed", 1)
    shell(log, 1, "pytest -q", "1 passed")
    record.user(log, "Use port 5433 and the staging key, please.")
    call = {
        "id": "d",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "git diff"}'},
    }
    record.assistant(log, "The accepted change.", tool_calls=[call])
    log.append(
        EventKind.TOOL_RESULT,
        "diff --git a/x b/x\n-1\n+2",
        data={"role": "tool", "anchor": True},
        call_id="d",
        exit_code=0,
    )
    compactor = make_compactor(strategy=strategy)
    for i in range(2, 36):
        room(compactor, log)
        shell(log, i, f"ls {i}", chatter(i))
    assert compactor.compactions(log) >= 2
    text = shown(make_set(), log)
    assert "FAILED tests/test_auth.py::test_jwt - assert 401 == 200\n1 failed" in text
    assert "Use port 5433 and the staging key, please." in text
    assert "diff --git a/x b/x\n-1\n+2" in text


turns = st.lists(
    st.tuples(
        st.sampled_from(["shell", "user", "parallel", "late", "file"]),
        st.integers(0, 5),
        st.sampled_from([None, 0, 1]),
        st.integers(1, 120),
    ),
    min_size=8,
    max_size=40,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=turns, strategy=st.sampled_from(OFFLINE), clear=st.booleans())
def test_any_run_keeps_its_promises(
    run: list[tuple[str, int, int | None, int]],
    strategy: Strategy,
    clear: bool,
    make_compactor: MakeCompactor,
    make_set: MakeSet,
) -> None:
    """Pairs whole, instructions there, never longer, replay equal: for runs with parallel and late results."""
    log = EventLog.memory(clock=lambda: 1_700_000_000_000_000_000)
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set, strategy, layers=default_layers() if clear else None)
    said = []
    for i, (kind, n, code, words) in enumerate(run):
        outcome = room(compactor, log)
        assert outcome.after <= outcome.before
        if kind == "user":
            said.append(f"wish {i} {chatter(i, words)}")
            record.user(log, said[-1])
        elif kind == "file":
            record.file_version(log, f"src/f{n}.py", f"x = {i}\n" * words)
        elif kind == "shell":
            shell(log, i, f"run {n}", chatter(n, words), code)
        else:
            ids = [f"c{i}.{k}" for k in range(3)]
            function = {"name": "bash", "arguments": json.dumps({"command": f"run {n}"})}
            record.assistant(
                log, "", tool_calls=[{"id": c, "type": "function", "function": function} for c in ids]
            )
            for call_id in reversed(ids) if kind == "late" else ids:
                record.tool_result(log, call_id, chatter(n, words), name="bash", exit_code=code)
    context = working_set.assemble(log)
    assert whole_exchanges(context)
    text = "\n".join(str(m["content"]) for m in context.messages)
    assert all(constraint in text for constraint in CONSTRAINTS)
    assert all(wish in text for wish in said)
    copy = EventLog.memory()
    import_lines(copy, export_lines(log))
    assert make_set().assemble(copy).messages == context.messages
