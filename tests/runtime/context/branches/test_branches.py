"""Sub-agents and scratch: what a branch shares with its parent, what comes back, what can be freed."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.branches.child import alone, fork, is_child
from deeproot.runtime.context.branches.report import join, report_of
from deeproot.runtime.context.branches.scratch import scratch
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.status.bar import StatusBar
from deeproot.runtime.context.status.limits import CallLimit
from deeproot.runtime.context.status.time_sense import TimeSense
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.thinking import Thinking, ThinkingRule, thinking_rule
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import GENERATION_PROMPT, WorkingSet

from ..agent_turns import begin, call, extends, linted, stable, text_of

MakeSet = Callable[..., WorkingSet]
CALL = {"id": "d1", "type": "function", "function": {"name": "delegate", "arguments": '{"task": "find it"}'}}


@pytest.fixture
def make_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> MakeSet:
    segments = SegmentTokenizer(tok)

    def make(template: str = "qwen2.5-instruct", **options: Any) -> WorkingSet:
        return WorkingSet(
            policy=ThreeZones(20_000), tokenizer=segments, template=make_template(template), **options
        )

    return make


def explore(child: EventLog) -> None:
    for i in range(6):
        call(child, "read_file", {"path": f"src/{i}.py"}, f"x{i} = 1\n" * 60, reasoning="Here?")


def tell(child: EventLog) -> None:
    record.assistant(child, "src/payment/callbacks.py:12 handle_callback")


@pytest.mark.parametrize("template", ["qwen2.5-instruct", "qwen3", "smollm2"])
def test_a_fork_begins_with_its_parents_prompt(log: EventLog, make_set: MakeSet, template: str) -> None:
    begin(log)
    for i in range(4):
        call(log, "bash", {"n": i}, f"output {i}", reasoning="I weigh it.")
    parent = make_set(template).assemble(log)
    record.assistant(log, "Somebody else may look.", tool_calls=[CALL])
    child = fork(log, "Find what handles payments.")
    working_set = make_set(template)
    first = working_set.assemble(child)
    # All of the parent's prompt but its reminder, in the same tokens, though the parent's call is still open.
    assert common_prefix(parent.token_ids, first.token_ids) >= stable(parent)
    assert stable(parent) > 0.8 * parent.token_ids.size
    assert "Find what handles payments." in text_of(first)
    explore(child)
    last = working_set.assemble(child)
    assert common_prefix(parent.token_ids, last.token_ids) >= stable(parent)
    assert read_trace(child).goal == read_trace(log).goal
    assert is_child(child)
    assert not is_child(log)


def test_with_the_real_tokenizer(log: EventLog, smollm2: tuple[tokenizers.Tokenizer, str]) -> None:
    made, source = smollm2

    def assembled(of: EventLog) -> Any:
        return WorkingSet(
            policy=ThreeZones(20_000), tokenizer=TokenizersAdapter(made), template=ChatTemplate(source)
        ).assemble(of)

    begin(log)
    call(log, "bash", {}, "output")
    parent, child = assembled(log), assembled(fork(log, "Find it."))
    assert common_prefix(parent.token_ids, child.token_ids) >= stable(parent)


def test_the_parent_gets_a_report_and_nothing_else(log: EventLog, make_set: MakeSet) -> None:
    begin(log)
    call(log, "bash", {}, "output")
    working_set = make_set()
    before = working_set.assemble(log)
    record.assistant(log, "Somebody else may look.", tool_calls=[CALL])
    child = fork(log, "Find what handles payments.")
    explore(child)
    branch = make_set().assemble(child)
    tell(child)
    seq = join(log, "d1", child, working_set.tokens_of_message)
    after = working_set.assemble(log)
    assert extends(before, after)
    assert len(after.messages) == len(before.messages) + 2
    assert "handle_callback" in text_of(after)
    assert "x3 = 1" not in text_of(after)
    segment = next(s for s in after.segments if s.key == f"e{seq}")
    assert (segment.source.uri, segment.source.trust) == ("agent://child", "untrusted")
    assert linted([before, after]).breaks == ()
    # The branch is what of the child's last prompt its parent does not go on with.
    freed = scratch(branch.token_ids, after.token_ids)
    assert freed.kept >= stable(before)
    assert freed.tokens == branch.token_ids.size - freed.kept > after.token_ids.size - before.token_ids.size


def test_one_that_is_alone_shares_the_root_only(log: EventLog, make_set: MakeSet) -> None:
    begin(log)
    call(log, "bash", {}, "secret output")
    parent, child = make_set().assemble(log), make_set().assemble(alone(log, "Find main() in /repo."))
    shared = common_prefix(parent.token_ids, child.token_ids)
    system = [b for b in parent.boundaries if b.zone is Zone.ROOT and b.key not in ("e4",)]
    assert shared >= max(b.end for b in system)
    assert "secret output" not in text_of(child)
    assert "Make the tests pass" not in text_of(child)
    assert read_trace(alone(log, "Find main().")).goal.startswith("From here on you work on a branch")


def test_limits_hold_for_parent_and_child_together(log: EventLog) -> None:
    begin(log)
    call(log, "phone_call", {"to": "Xfinity"}, "busy")
    record.assistant(log, "", tool_calls=[CALL])
    child = fork(log, "Phone them.")
    bar = StatusBar(child, limits=[CallLimit("phone_call", 3, "to")])
    call(child, "phone_call", {"to": "Xfinity"}, "busy")
    call(child, "phone_call", {"to": "Xfinity"}, "busy")
    seq = bar.update()
    assert seq is not None
    assert "(3/3) -> maximum reached" in child.text(child.event(seq))
    record.assistant(child, "Nobody answers.")
    assert [made["name"] for made in report_of(child, len).calls] == ["phone_call"] * 2
    join(log, "d1", child, len)
    parents = StatusBar(log, limits=[CallLimit("phone_call", 3, "to")])
    seq = parents.update()
    assert seq is not None
    assert "phone_call to Xfinity: 3 calls (3/3) -> maximum reached" in log.text(log.event(seq))
    sense = TimeSense(searches=frozenset(["phone_call"]))
    assert sense.readings(parents.history.calls, 0, None) == []


def test_a_fork_that_says_nothing_does_not_speak_for_its_parent(log: EventLog) -> None:
    begin(log)
    record.assistant(log, "I am the parent.")
    child = fork(log, "Find it.")
    assert report_of(child, len).text == "No report: the sub-agent stopped after 0 calls."


def test_a_call_is_not_cut_in_two(log: EventLog) -> None:
    begin(log)
    call(log, "bash", {}, "output")
    record.assistant(log, "", tool_calls=[CALL])
    with pytest.raises(EventLogError, match="a call is open at event 7"):
        fork(log, "x", upto=7)
    with pytest.raises(EventLogError, match="the child's log has 6 events"):
        fork(log, "x", into=fork(log, "y", upto=4))
    assert [e.data.get("upto") for e in fork(log, "x").read() if "upto" in e.data] == [6]


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=3000), st.integers(80, 400))
def test_a_report_is_bounded(words: str, most: int) -> None:
    child = EventLog.memory()
    record.assistant(child, words)
    report = report_of(child, len, max_tokens=most)
    assert len(report.text) <= most
    assert report.tokens == len(report.text)
    if not words.strip():
        assert not report.finished
    elif len(words.strip()) <= most:
        assert (report.text, report.cut, report.finished) == (words.strip(), 0, True)
    else:
        assert report.cut > 0
        assert "[cut: the report had" in report.text


def test_a_child_that_never_ends_says_so(log: EventLog) -> None:
    child = EventLog.memory()
    assert report_of(child, len).text == "No report: the sub-agent stopped after 0 calls."
    call(child, "bash", {}, "x", said="<think>\nhm\n</think>\nI look.")
    report = report_of(child, len)
    assert report.text == "No report: the sub-agent stopped after 1 calls. Its last words: I look."
    record.assistant(log, "", tool_calls=[CALL])
    assert log.event(join(log, "d1", child, len)).exit_code == 1
    with pytest.raises(ValueError, match="max_tokens is 10; give more than"):
        report_of(child, len, max_tokens=10)


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("qwen3", ThinkingRule(True, False)),
        ("qwen2.5-instruct", ThinkingRule(True, True)),
        ("chatml_unthinking", ThinkingRule(False, False)),
        ("smollm2", ThinkingRule(True, True)),
    ],
)
def test_what_templates_do_with_thinking(
    template: str, rule: ThinkingRule, make_template: Callable[[str], ChatTemplate]
) -> None:
    assert thinking_rule(make_template(template)) == rule


def thinking_run(log: EventLog, working_set: WorkingSet) -> list[Any]:
    begin(log)
    contexts = []
    for i in range(6):
        if i == 3:
            record.assistant(log, "Half is done.", reasoning="I rest.")
            record.user(log, "Go on.")
        contexts.append(working_set.assemble(log))
        call(log, "bash", {"n": i}, f"output {i}", reasoning="I weigh it." * 5)
    return contexts


def test_thinking_is_dropped_when_the_user_speaks_and_then_is_scratch(
    log: EventLog, make_set: MakeSet
) -> None:
    contexts = thinking_run(log, make_set("qwen3"))
    breaks = [i for i, (a, b) in enumerate(itertools.pairwise(contexts)) if not extends(a, b)]
    assert breaks == [2]
    dropped = scratch(contexts[2].token_ids, contexts[3].token_ids)
    assert dropped.kept < stable(contexts[2])
    assert dropped.tokens == contexts[2].token_ids.size - dropped.kept


def test_two_phases_never_break_the_prefix(
    log: EventLog, make_set: MakeSet, bpe: tokenizers.Tokenizer
) -> None:
    """Thought on a branch, the action committed: append-only over user turns too, and the thought is what is freed."""
    contexts = thinking_run(log, make_set("qwen3", thinking=Thinking.SCRATCH))
    assert all(extends(a, b) for a, b in itertools.pairwise(contexts))
    assert all("I weigh it." not in str(c.request()) for c in contexts)
    reply = np.array(
        bpe.encode("<think>\nI weigh it.\n</think>\n\nI look.<|im_end|>", add_special_tokens=False).ids,
        np.int32,
    )
    for before, after in itertools.pairwise(contexts[:3]):
        prompt = before.token_ids[: stable(before)]
        opened = next(b for b in before.boundaries if b.key == GENERATION_PROMPT)
        opening = before.token_ids[opened.start : opened.end]
        made = scratch(np.concatenate([prompt, opening, reply]), after.token_ids)
        # The prompt goes on, the thought and what was said behind it do not.
        assert prompt.size <= made.kept <= prompt.size + opening.size + 1
        assert made.tokens >= reply.size - 1
