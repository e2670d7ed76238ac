"""Statuses, skills and a child's briefing under compaction: old statuses go, all else stays whole."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from deeproot.runtime.context.branches.child import fork
from deeproot.runtime.context.compaction.compactor import Compactor, Status
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.skills.skill import Skill
from deeproot.runtime.context.skills.use import use
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.mode import Mode
from deeproot.runtime.context.status.techniques import Techniques
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

from ..agent_turns import begin, call, text_of


@pytest.mark.parametrize("strategy", ["joint", "per_result", "checkpoint"])
def test_old_statuses_go_and_the_rest_stays(
    log: EventLog, tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], strategy: str
) -> None:
    begin(log)
    child = fork(log, "Find what handles payments.")
    use(child, Skill("slides", "slides are made", "Write html first."))
    working_set = WorkingSet(
        policy=AppendOnly(), tokenizer=SegmentTokenizer(tok), template=make_template("qwen2.5-instruct")
    )
    compactor = Compactor(working_set, budget=6000, strategy=strategies()[strategy])
    bar = StatusBar(child, techniques=Techniques(call_counter=True), mode=Mode.APPEND)
    outcomes, shown = set(), []
    for i in range(24):
        outcomes.add(asyncio.run(compactor.make_room(child, incoming=300)).status)
        bar.update()
        context = working_set.assemble(child)
        shown.append(text_of(context).count("<agent_status>"))
        assert not i or f"calls: bash {i}\n" in text_of(context)
        call(child, "bash", {"cmd": f"make part{i}"}, f"built part-{i} " * 25)
    assert Status.COMPACTED in outcomes
    assert context.token_ids.size < 6000
    assert any(later < earlier for earlier, later in itertools.pairwise(shown))
    assert text_of(context).count("Write html first.") == 1
    assert text_of(context).count("Find what handles payments.") == 1
