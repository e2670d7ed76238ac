"""The bench over real runs does what its table says."""

import pytest

from deeproot.bench.compaction import Kept, airline_runs, append, budget_of, replay, swe_runs
from deeproot.bench.working_set import CHATML, byte_tokenizer
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet


@pytest.mark.parametrize("strategy", ["joint", "checkpoint"])
def test_the_pydicom_run(strategy: str) -> None:
    segments, template, kept = (
        SegmentTokenizer(TokenizersAdapter(byte_tokenizer())),
        ChatTemplate(CHATML),
        Kept(),
    )
    run = swe_runs()[0]
    replay(run, strategies()[strategy], 0.4, segments, template, kept)
    assert kept.compactions >= 1
    assert kept.over == 0
    assert kept.wanted["diagnostic"] > 3
    assert kept.found["diagnostic"] == kept.wanted["diagnostic"]
    assert kept.share("diagnostic").startswith("1.00 of ")


def test_a_window_without_compaction_loses_what_it_forgets() -> None:
    segments, template, kept = (
        SegmentTokenizer(TokenizersAdapter(byte_tokenizer())),
        ChatTemplate(CHATML),
        Kept(),
    )
    replay(airline_runs(1)[0], None, 0.25, segments, template, kept)
    assert kept.found["constraint"] < kept.wanted["constraint"]


def test_what_cannot_be_made_to_fit_is_appended_once() -> None:
    """Also where the mark is reached only by what was appended: a constraint that fills the budget."""
    segments, template = SegmentTokenizer(TokenizersAdapter(byte_tokenizer())), ChatTemplate(CHATML)
    working_set = WorkingSet(policy=ThreeZones(2_000), tokenizer=segments, template=template)
    compactor = Compactor(working_set, budget=2_000)
    log = EventLog.memory(clock=lambda: 0)
    for n in range(1, 3):
        data = {"role": "system", "part": "constraint"}
        append(compactor, log, NewEvent(EventKind.INSTRUCTION, "Never edit vendor/. " * 100, data))
        assert sum(event.kind is EventKind.INSTRUCTION for event in log.read()) == n


def test_the_budget_is_over_the_fixed_part() -> None:
    segments, template = SegmentTokenizer(TokenizersAdapter(byte_tokenizer())), ChatTemplate(CHATML)
    run = swe_runs()[0]
    half, quarter, whole = (budget_of(run, share, segments, template) for share in (0.5, 0.25, 1.0))
    assert whole.high_tokens - half.high_tokens == pytest.approx(
        2 * (half.high_tokens - quarter.high_tokens), abs=3
    )
    assert half.low_tokens < half.high_tokens
