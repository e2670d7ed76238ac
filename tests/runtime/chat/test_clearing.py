"""Clearing old tool results: what goes, when, and that the same conversation, longer, begins alike."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.clearing import PLACEHOLDER, ClearToolUses, clear_tool_uses

Message = dict[str, Any]


def use(number: int, result: str, name: str = "f") -> list[Message]:
    call = {"id": str(number), "type": "function", "function": {"name": name, "arguments": '{"a": 1}'}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": str(number), "content": result},
    ]


def talk(*results: str, name: str = "f") -> list[Message]:
    uses = [message for i, result in enumerate(results) for message in use(i, result, name)]
    return [{"role": "user", "content": "x" * 10}, *uses]


def shown(messages: Any) -> list[str]:
    return ["-" if m["content"] == PLACEHOLDER else m["content"] for m in messages if m["role"] == "tool"]


R = "r" * 100


@pytest.mark.parametrize(
    ("edit", "results", "is_new"),
    [
        (ClearToolUses(trigger_tokens=10_000), [R, R, R, R, R], False),
        (ClearToolUses(trigger_tokens=350, keep=1), ["-", "-", "-", "-", R], True),
        (ClearToolUses(trigger_tokens=100, keep=3), ["-", "-", R, R, R], True),
        (ClearToolUses(trigger_tokens=100, keep=0), ["-", "-", "-", "-", "-"], True),
        (ClearToolUses(trigger_tokens=None, trigger_uses=3, keep=1), ["-", "-", "-", R, R], False),
        (ClearToolUses(trigger_tokens=100, keep=1, exclude=frozenset({"f"})), [R, R, R, R, R], False),
        (ClearToolUses(trigger_tokens=100, keep=1, clear_at_least=150), ["-", "-", "-", R, R], False),
        (ClearToolUses(trigger_tokens=100, keep=1, clear_at_least=1000), [R, R, R, R, R], False),
    ],
)
def test_what_goes(edit: ClearToolUses, results: list[str], is_new: bool) -> None:
    """`is_new`: whether the newest turn made a stride."""
    found = clear_tool_uses(talk(R, R, R, R, R), edit, len)
    assert shown(found.messages) == results
    assert found.num_uses == results.count("-")
    assert found.num_tokens == found.num_uses * (len(R) - len(PLACEHOLDER))
    assert (found.num_behind > 0) == is_new


def test_what_is_shorter_than_the_placeholder_stays() -> None:
    found = clear_tool_uses(talk("a", "b", "c"), ClearToolUses(trigger_tokens=1, keep=0), len)
    assert shown(found.messages) == ["a", "b", "c"]


def test_results_of_a_search_for_tools_stay() -> None:
    found = clear_tool_uses(talk(R, R, R, name="tool_search"), ClearToolUses(trigger_tokens=1, keep=0), len)
    assert found.num_uses == 0


def test_arguments_go_on_request() -> None:
    edit = ClearToolUses(trigger_tokens=1, keep=1, clear_inputs=True)
    found = clear_tool_uses(talk(R, R, R), edit, len).messages
    arguments = [m["tool_calls"][0]["function"]["arguments"] for m in found if m.get("tool_calls")]
    assert arguments == ["{}", "{}", '{"a": 1}']


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300), max_size=25),
    trigger=st.integers(1, 2000),
    keep=st.integers(0, 4),
    least=st.integers(0, 600),
    inputs=st.booleans(),
)
def test_a_longer_conversation_begins_alike_between_strides(
    sizes: list[int], trigger: int, keep: int, least: int, inputs: bool
) -> None:
    """From request to request the text only grows, but where a stride is made; and the accounts are right."""
    edit = ClearToolUses(trigger_tokens=trigger, keep=keep, clear_at_least=least, clear_inputs=inputs)
    messages = talk(*("r" * size for size in sizes))
    before = clear_tool_uses(messages[:1], edit, len)
    for end in range(3, len(messages) + 1, 2):
        now = clear_tool_uses(messages[:end], edit, len)
        assert now.num_uses >= before.num_uses
        if now.num_uses == before.num_uses:
            assert now.messages[: len(before.messages)] == before.messages
        else:
            assert now.num_tokens - before.num_tokens >= max(1, least)
        assert now.num_uses <= max(0, shown(now.messages).count("-"))
        assert all(result != "-" for result in shown(now.messages)[len(shown(now.messages)) - keep :] if keep)
        before = now
