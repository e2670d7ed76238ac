"""Logs that were really compacted: what the measures say of them, against what the compactor knows."""

import asyncio

from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.layers import gentle_layers
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.measure.actions import read_run
from deeproot.runtime.context.measure.measures import Share, measure
from deeproot.runtime.context.measure.prices import PriceTable
from deeproot.runtime.context.measure.probe import probe
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, Replayer, RoughTokenizer
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.working_set import WorkingSet

from ..compaction.runs import CONSTRAINTS, chatter, shell, start

TURNS = 60


def test_a_compacted_log_keeps_its_rules_and_the_probe_sees_who_broke_them(log: EventLog) -> None:
    start(log)
    tokens = SegmentTokenizer(RoughTokenizer())
    working_set = WorkingSet(policy=AppendOnly(), tokenizer=tokens, template=ChatTemplate(PLAIN_TEMPLATE))
    compactor = Compactor(working_set, budget=4_000, layers=gentle_layers())
    swaps = 0
    for number in range(TURNS):
        swaps += asyncio.run(compactor.make_room(log)).swapped
        command = "sed -i s/a/b/ vendor/x.c" if number in (2, TURNS - 2) else f"make part{number}"
        shell(log, number, command, chatter(number, 120))
    assert swaps > 3
    run = read_run(log)
    calls = Replayer(AppendOnly(), tokens).calls(log)
    found = measure(log, run, calls, output_tokens=[1] * TURNS, prices=PriceTable())
    assert found.compactions == swaps
    assert found.s_cr == (1.0,) * (swaps + 1)
    assert found.c_r is not None
    assert found.c_r > 2
    probed = probe(run, calls, {})
    checked = {each.constraint: each for each in probed.constraints}
    assert [checked[text].checked is None for text in CONSTRAINTS] == [False, True, True]
    early, late = checked["Never edit vendor/."].violations
    assert (early.turn, early.compactions, late.turn, late.compactions) == (3, 0, TURNS - 1, swaps)
    assert early.staged
    assert late.staged
    assert probed.by_compactions[0].part == 1
    assert sum((share.whole for share in probed.by_compactions.values()), 0) == TURNS
    assert probed.by_horizon["<= 100"] == Share(1, TURNS - 50)
