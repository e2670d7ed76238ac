"""What the tests of compaction share: a working set on a byte-level vocabulary, and ways to run a log through it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.compaction.compactor import Compactor, Outcome
from deeproot.runtime.context.compaction.layers import gentle_layers
from deeproot.runtime.context.compaction.strategies import JOINT
from deeproot.runtime.context.compaction.strategy import Strategy
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.items import LayoutPolicy
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

BUDGET = 12_000
"""Tokens of the small vocabulary, of which a word has several."""
MakeSet = Callable[..., WorkingSet]
MakeCompactor = Callable[..., Compactor]


@pytest.fixture
def make_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> MakeSet:
    segments = SegmentTokenizer(tok)
    template = make_template("qwen2.5-instruct")

    def make(policy: LayoutPolicy | None = None, result_tokens: int | None = 4000) -> WorkingSet:
        return WorkingSet(
            policy=policy or AppendOnly(), tokenizer=segments, template=template, result_tokens=result_tokens
        )

    return make


@pytest.fixture
def make_compactor(make_set: MakeSet) -> MakeCompactor:
    def make(
        working_set: WorkingSet | None = None,
        strategy: Strategy = JOINT,
        budget: int | Budget = BUDGET,
        **options: Any,
    ) -> Compactor:
        options.setdefault("layers", gentle_layers())
        return Compactor(working_set or make_set(), budget=budget, strategy=strategy, **options)

    return make


def room(compactor: Compactor, log: EventLog, incoming: int = 0) -> Outcome:
    """`make_room`, awaited."""
    return asyncio.run(compactor.make_room(log, incoming))


def shown(working_set: WorkingSet, log: EventLog, upto: int | None = None) -> str:
    """All that the model sees, as one text."""
    return "\n".join(str(m["content"]) for m in working_set.assemble(log, upto=upto).messages)
