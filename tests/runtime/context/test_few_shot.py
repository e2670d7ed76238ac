"""Few-shot sets: turns before the task, the same bytes for every task of a kind."""

from collections.abc import Callable

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.few_shot import Example, FewShotSet, choose, show
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

from .agent_turns import call, text_of

BUGS = FewShotSet(
    "bug report",
    (
        Example("It crashes when I save.", "Title: crash on save\nSteps: save"),
        Example("Slow!", "Title: slow\nSteps: unknown"),
    ),
)
MAIL = FewShotSet("mail", (Example("Thank Ann.", "Dear Ann, thank you."),))


def start(log: EventLog, examples: FewShotSet | None, task: str) -> None:
    record.policy(log, "You write.")
    if examples is not None:
        show(log, examples)
    record.user(log, task)


@pytest.mark.parametrize("template", ["qwen2.5-instruct", "smollm2", "qwen3"])
def test_examples_are_turns_before_the_task_and_shared(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], template: str
) -> None:
    segments, made = SegmentTokenizer(tok), make_template(template)
    contexts = []
    for task in ("The menu is empty.", "No sound since Monday."):
        log = EventLog.memory()
        start(log, choose([MAIL, BUGS], "bug report"), task)
        assert read_trace(log).goal == task
        call(log, "bash", {}, "ok")
        contexts.append(WorkingSet(policy=ThreeZones(9000), tokenizer=segments, template=made).assemble(log))
    one, other = contexts
    assert [m["role"] for m in one.messages][:6] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert one.messages[4]["content"] == "Title: slow\nSteps: unknown"
    examples = [b for b in one.boundaries if b.key in {f"e{i}" for i in range(2, 6)}]
    assert {b.zone for b in examples} == {Zone.ROOT}
    assert common_prefix(one.token_ids, other.token_ids) >= max(b.end for b in examples)
    assert "menu" not in text_of(other)


def test_a_run_keeps_the_set_that_it_began_with(log: EventLog) -> None:
    start(log, BUGS, "x")
    assert show(log, BUGS) == []
    with pytest.raises(EventLogError, match="has other examples"):
        show(log, MAIL)
    late = EventLog.memory()
    record.user(late, "x")
    record.assistant(late, "y")
    with pytest.raises(EventLogError, match="show them first"):
        show(late, MAIL)


def test_sets_are_checked() -> None:
    with pytest.raises(ValueError, match="needs a kind and at least one example"):
        FewShotSet("mail", ())
    with pytest.raises(ValueError, match=r"examples\[1\] of mail is empty on one side"):
        FewShotSet("mail", (Example("a", "b"), Example("c", " ")))
    assert BUGS.complaints == ()
    assert "4 examples" in FewShotSet("mail", (Example("a", "b"),) * 4).complaints[0]
    assert choose([MAIL], "poem") is None
    with pytest.raises(ValueError, match="2 few-shot sets are of kind 'mail'"):
        choose([MAIL, MAIL], "mail")
    assert BUGS.digest != FewShotSet("bug report", BUGS.examples[::-1]).digest
