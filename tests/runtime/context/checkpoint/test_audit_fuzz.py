"""A thousand corrupted checkpoints, none accepted; a thousand true ones, all accepted."""

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from deeproot.runtime.context.checkpoint.audit import audit
from deeproot.runtime.context.checkpoint.files import Workspace
from deeproot.runtime.context.checkpoint.ledger import ledger
from deeproot.runtime.context.checkpoint.make import accept
from deeproot.runtime.context.checkpoint.schema import Checkpoint, canonical_bytes, parse
from deeproot.runtime.context.checkpoint.trace import Trace, read_trace
from deeproot.runtime.context.event_log import EventLog

from .runs import CORRUPTIONS, make_run, read_points, true_checkpoint

RUNS, EACH = 25, 40


@dataclass(frozen=True, slots=True)
class Run:
    log: EventLog
    files: Workspace
    points: list[tuple[Trace, Checkpoint]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    rng = random.Random(7)
    made = []
    for _ in range(RUNS):
        log, files = make_run(rng, tmp_path_factory.mktemp("workspace"))
        assert len(log) >= 42
        made.append(Run(log, files, read_points(rng, log, files)))
    return made


def test_a_thousand_true_checkpoints_are_accepted(runs: list[Run]) -> None:
    rng = random.Random(11)
    accepted = set()
    for run in runs:
        for _ in range(EACH):
            checkpoint = true_checkpoint(rng, *rng.choice(run.points), run.files)
            audited = accept(run.log, parse(canonical_bytes(checkpoint)), files=run.files)
            assert audited.checkpoint == checkpoint
            accepted.add(audited.digest)
    assert len(accepted) == 1000


def test_a_thousand_corrupted_checkpoints_are_refused(runs: list[Run]) -> None:
    rng = random.Random(13)
    kinds = list(CORRUPTIONS)
    refused: Counter[str] = Counter()
    for i in range(RUNS * EACH):
        run = runs[i % RUNS]
        trace, base = rng.choice(run.points)
        true = true_checkpoint(rng, trace, base, run.files)
        corrupt = kinds[i % len(kinds)]
        false = corrupt(rng, true, trace)
        assert false != true, corrupt.__name__
        found = audit(false, trace, run.files)
        assert CORRUPTIONS[corrupt] in {each.gate for each in found}, (corrupt.__name__, false)
        assert all(each.field and each.claimed and each.recorded for each in found)
        refused[corrupt.__name__] += 1
    assert refused.total() == 1000
    assert set(refused) == {kind.__name__ for kind in kinds}
    assert min(refused.values()) >= 62


def test_every_ledger_passes_its_own_gates_at_any_point(runs: list[Run]) -> None:
    for run in runs[:5]:
        for upto in range(len(run.log) + 1):
            trace = read_trace(run.log, upto)
            assert audit(ledger(trace, run.files), trace, run.files) == []
