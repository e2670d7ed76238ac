"""The linter of a working set: which bytes are volatile, and what changed between two texts."""

from collections.abc import Callable

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.linter import Linter, classify, volatile_stretches
from deeproot.runtime.context.policies import AppendOnly
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("Now: 2025-01-31T10:11:12Z.", "timestamp"),
        ("Friday, 31 Jan 2025", "timestamp"),
        ("at 10:11:12.5", "timestamp"),
        ("epoch 1738318272", "timestamp"),
        ("id 0f8fad5b-d9cb-469f-a165-708677289501", "uuid"),
        ("build 9f86d081884c7d659a2feaa0c55ad015", "hex"),
        ("object at 0x7f3a2b1c4d5e", "address"),
        ("This is turn 12", "counter"),
        ("request_id=88", "counter"),
        ("39 tokens left", "counter"),
        ("in /tmp/tmpab12/out.txt", "temp path"),
        ('{"b": 1, "a": 2, "c": 3}', "unordered mapping"),
    ],
)
def test_volatile_bytes_are_found(text: str, cause: str) -> None:
    assert [found[0] for found in volatile_stretches(text)] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "Never edit vendor/.",
        "Use port 5433.",
        "version 3.11.7",
        '{"a": 1, "b": 2, "c": 3}',
        "100% of 24,000",
        "deadbeef",
        "RFC 8785",
    ],
)
def test_stable_text_is_left_alone(text: str) -> None:
    assert list(volatile_stretches(text)) == []


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [("at 10:00:01", "at 10:00:02", "timestamp"), ("turn 1", "turn 2", "counter"), ("[a, b]", "[b, a]", "unordered mapping"), ("a", "b", "changed"), ("turn 1 x", "turn 2 y", "changed")],
)  # fmt: skip
def test_changes_are_classified(before: str, after: str, cause: str) -> None:
    assert classify(before, after) == cause


def test_the_linter_remembers_and_stays_right() -> None:
    linter = Linter()
    for _ in range(2):
        assert [len(found) for found in linter.check(["turn 1", "calm", "10:11:12 and turn 2"])] == [1, 0, 2]
    assert linter.check(["calm"]) == [()]


def test_the_report_names_volatile_bytes_in_the_root_but_not_in_frozen_words(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], log: EventLog
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "one", "arguments": "{}"}}
    record.policy(log, "It is 2025-01-31 10:11:12. Be careful.")
    record.user(log, "Look at /tmp/x/y since 10:00:00.")
    record.assistant(log, "", tool_calls=[call])
    record.tool_result(log, "c1", "2025-01-31 10:11:12 started")
    context = WorkingSet(
        policy=AppendOnly(), tokenizer=tok, template=make_template("qwen2.5-instruct")
    ).assemble(log)
    (finding,) = context.report.lint
    assert (finding.key, finding.cause, finding.excerpt) == ("e1", "timestamp", "2025-01-31 10:11:12")
    assert finding.cost_tokens == context.token_ids.size - finding.token
    assert "lint: timestamp '2025-01-31 10:11:12' in e1 (root)" in str(context.report)
