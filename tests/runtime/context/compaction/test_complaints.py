"""What users of other agents have complained of in public, each as a test."""

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.checkpointing import StructuredCheckpoint
from deeproot.runtime.context.compaction.compactor import Status
from deeproot.runtime.context.compaction.layers import ClearResults, default_layers
from deeproot.runtime.context.compaction.strategies import CITED, JOINT, PER_RESULT, QUERY_AWARE, WINDOWED
from deeproot.runtime.context.compaction.strategy import Proposal, Span, Strategy, Tools, Unit
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.working_set import Context

from .conftest import MakeCompactor, MakeSet, room, shown
from .runs import CONSTRAINTS, chatter, shell, start

OFFLINE = [PER_RESULT, JOINT, QUERY_AWARE, CITED, WINDOWED, StructuredCheckpoint()]
every_strategy = pytest.mark.parametrize("strategy", OFFLINE, ids=lambda s: s.name)


def whole(context: Context) -> bool:
    calls = [call["id"] for message in context.messages for call in message.get("tool_calls") or ()]
    results = [message["tool_call_id"] for message in context.messages if message["role"] == "tool"]
    return calls == results


class Wordy:
    """A strategy whose every summary is longer than what it stands for."""

    name, unit = "wordy", Unit.RUN

    def __init__(self) -> None:
        self.asked = 0

    async def propose(self, span: Span, tools: Tools) -> Proposal:
        self.asked += 1
        return Proposal("I have thought about this at length. " * 4000)


def test_rules_survive_fifty_compactions(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    """Constraint retention 1.0: every rule stands verbatim in every prompt, in the root and at the tail."""
    start(log)
    working_set = make_set(ThreeZones(6_000))
    compactor = make_compactor(working_set, budget=6_000)
    kept: list[bool] = []
    i = 0
    while compactor.compactions(log) < 50:
        room(compactor, log)
        shell(log, i, f"make part{i % 9}", chatter(i, 120))
        kept += [constraint in shown(working_set, log) for constraint in CONSTRAINTS]
        i += 1
        assert i < 1_000
    assert sum(kept) / len(kept) == 1.0
    root = str(working_set.assemble(log).messages[0]["content"])
    assert all(constraint in root for constraint in CONSTRAINTS)


@every_strategy
def test_the_latest_request_is_never_lost(
    strategy: Strategy, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set, strategy)
    for i in range(14):
        shell(log, i, f"ls {i}", chatter(i))
    record.user(log, "Now rename Pool to Reservoir, and nothing else.")
    assert room(compactor, log).status is Status.COMPACTED
    for i in range(14, 40):
        shell(log, i, f"ls {i}", chatter(i))
        room(compactor, log)
        assert "Now rename Pool to Reservoir, and nothing else." in shown(working_set, log)


def test_condensation_that_grows_the_context_is_refused(
    make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    for i in range(18):
        shell(log, i, f"ls {i}", chatter(i))
    before = shown(working_set, log)
    wordy = Wordy()
    outcome = room(make_compactor(working_set, wordy), log)
    assert wordy.asked > 0
    assert outcome.after <= outcome.before
    # The last resort needs no model; with it, the prompt shrinks all the same.
    assert outcome.status is Status.COMPACTED
    assert len(shown(working_set, log)) < len(before)
    assert "at length" not in shown(working_set, log)


def test_useless_condensation_ends(make_compactor: MakeCompactor, log: EventLog) -> None:
    """Nearly everything is the user's own: a model is asked a few times, and then no more."""
    start(log)
    for i in range(19):
        record.user(log, f"Keep {i}: {chatter(i)}")
    for i in range(5):
        shell(log, i, f"ls {i}", "fine")
    wordy = Wordy()
    compactor = make_compactor(strategy=wordy)
    statuses = [room(compactor, log).status for _ in range(10)]
    assert statuses == [Status.USELESS] * 3 + [Status.OPEN] * 7
    assert wordy.asked <= 3 * 2


@pytest.mark.parametrize("newest", [True, False])
def test_a_single_huge_output(
    newest: bool, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    """One `cat` of a file that is larger than the budget, as the newest turn or an older one."""
    start(log)
    huge = "\n".join(f"row {i}: {chatter(i, 10)}" for i in range(3_000))
    working_set = make_set(ThreeZones(12_000), result_tokens=None)
    compactor = make_compactor(working_set)
    shell(log, 0, "cat data.csv", huge)
    for i in range(1, 1 if newest else 8):
        shell(log, i, f"ls {i}", chatter(i))
    outcome = room(compactor, log)
    assert outcome.status is Status.COMPACTED
    context = working_set.assemble(log)
    assert context.token_ids.size < 9_600
    assert "the archive has all" in shown(working_set, log) or not newest
    assert log.text(log.event(7)) == huge


def test_a_huge_file_version(make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog) -> None:
    start(log)
    shell(log, 0, "ls", "data.csv")
    record.file_version(log, "data.csv", "\n".join(f"{i},{i * i}" for i in range(4_000)))
    working_set = make_set(ThreeZones(12_000))
    assert room(make_compactor(working_set), log).status is Status.COMPACTED
    assert working_set.assemble(log).token_ids.size < 9_600


@every_strategy
def test_no_orphaned_results_after_chained_compaction(
    strategy: Strategy, make_compactor: MakeCompactor, make_set: MakeSet, log: EventLog
) -> None:
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set, strategy, layers=default_layers(), budget=8_000)
    for i in range(40):
        room(compactor, log)
        shell(log, i, f"make part{i}", chatter(i, 100), exit_code=i % 3)
        assert whole(working_set.assemble(log))
    assert compactor.compactions(log) >= 3


def test_a_breaker_that_closes_again(make_compactor: MakeCompactor, log: EventLog) -> None:
    start(log)
    for i in range(19):
        record.user(log, f"Keep {i}: {chatter(i)}")
    compactor = make_compactor()
    for _ in range(4):
        outcome = room(compactor, log)
    assert outcome.status is Status.OPEN
    for i in range(16):
        shell(log, i, f"make part{i}", chatter(i, 120))
    assert room(compactor, log).status is Status.COMPACTED
    assert room(compactor, log).status is not Status.OPEN


FATAL = "FATAL: worker 7 lost its lease on shard 0x7f31: clock skew 41s exceeds 30s"


@pytest.mark.parametrize(
    ("strategy", "layers"),
    [*((s, default_layers()) for s in OFFLINE), (JOINT, (ClearResults(),))],
    ids=lambda v: getattr(v, "name", str(len(v)) if isinstance(v, tuple) else ""),
)
def test_the_fatal_line_is_never_truncated_away(
    strategy: Strategy,
    layers: tuple[object, ...],
    make_compactor: MakeCompactor,
    make_set: MakeSet,
    log: EventLog,
) -> None:
    """It stands in the middle of a long output of no known format, and is open until a later run passes."""
    start(log)
    working_set = make_set()
    compactor = make_compactor(working_set, strategy, layers=layers)
    shell(log, 0, "pytest -q", "FAILED tests/test_auth.py::test_a - assert 1 == 2\n1 failed", 1)  # the anchor
    noise = [f"info {i} all is well" for i in range(4_000)]
    shell(log, 1, "./deploy --shard 7", "\n".join([*noise[:2_000], FATAL, *noise[2_000:]]), 1)
    assert FATAL in shown(working_set, log)  # staging shortens, but keeps it
    i = 2
    while compactor.compactions(log) < 3:
        room(compactor, log)
        shell(log, i, f"make part{i}", chatter(i, 100))
        assert FATAL in shown(working_set, log)
        i += 1
    shell(log, i, "./deploy --shard 7", "deployed", 0)
    while compactor.compactions(log) < 5:
        i += 1
        room(compactor, log)
        shell(log, i, f"make part{i}", chatter(i, 100))
    assert "Open, verbatim:\n#9 ./deploy" not in shown(working_set, log)
