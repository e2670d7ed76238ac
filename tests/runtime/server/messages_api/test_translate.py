"""Every block of a conversation reaches the chat template, in order and in its place."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.messages_api.schemas import CountTokensRequest, MessagesRequest
from deeproot.runtime.server.messages_api.translate import translate

texts = st.text(min_size=1, max_size=6)
text_blocks = st.builds(lambda text: {"type": "text", "text": text}, texts)
results = st.builds(
    lambda i, text: {"type": "tool_result", "tool_use_id": f"t{i}", "content": text},
    st.integers(0, 9),
    texts,
)
uses = st.builds(
    lambda i, value: {"type": "tool_use", "id": f"t{i}", "name": "f", "input": {"x": value}},
    st.integers(0, 9),
    st.integers() | texts,
)
thoughts = st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, texts)
user_turns = st.builds(
    lambda content: {"role": "user", "content": content},
    texts | st.lists(text_blocks | results, min_size=1, max_size=5),
)
assistant_turns = st.builds(
    lambda content: {"role": "assistant", "content": content},
    texts | st.lists(text_blocks | uses | thoughts, min_size=1, max_size=5),
)


def words(content: Any) -> list[str]:
    """The texts of blocks or parts, in order."""
    if isinstance(content, str):
        return [content]
    found: list[str] = []
    for part in content:
        found += words(part.get("content") or part.get("text") or part.get("thinking") or "")
    return [word for word in found if word]


@given(st.lists(user_turns | assistant_turns, min_size=1, max_size=6))
def test_nothing_is_lost_and_everything_knows_where_it_came_from(turns: list[dict[str, Any]]) -> None:
    translated = translate(CountTokensRequest.model_validate({"messages": turns}))
    messages = [message.model_dump(exclude_unset=True) for message in translated.body.messages]
    assert len(messages) == len(translated.origins)
    for i, turn in enumerate(turns):
        mine = [
            m for m, origin in zip(messages, translated.origins, strict=True) if origin == f"messages[{i}]"
        ]
        if turn["role"] == "assistant":
            (message,) = mine
            blocks = (
                [{"type": "text", "text": turn["content"]}]
                if isinstance(turn["content"], str)
                else turn["content"]
            )
            assert message["content"] == "".join(b["text"] for b in blocks if b["type"] == "text")
            assert message.get("reasoning_content", "") == "".join(
                b["thinking"] for b in blocks if b["type"] == "thinking"
            )
            called = [call["id"] for call in message.get("tool_calls", ())]
            assert called == [b["id"] for b in blocks if b["type"] == "tool_use"]
        else:
            assert [word for m in mine for word in words(m["content"])] == words(turn["content"])
            expected = (
                [b["tool_use_id"] for b in turn["content"] if b["type"] == "tool_result"]
                if isinstance(turn["content"], list)
                else []
            )
            assert [m["tool_call_id"] for m in mine if m["role"] == "tool"] == expected


def test_fields_that_are_named_otherwise() -> None:
    body = MessagesRequest.model_validate(
        {
            "max_tokens": 7,
            "messages": [{"role": "user", "content": "x"}],
            "stop_sequences": ["a"],
            "top_k": 3,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "strict": True}],
            "thinking": {"type": "disabled"},
            "output_config": {
                "effort": "low",
                "format": {"type": "json_schema", "schema": {"type": "object"}},
            },
        }
    )
    chat = translate(body).body
    assert chat.max_tokens == 7
    assert chat.stop == ["a"]
    assert chat.top_k == 3
    assert chat.tool_choice == "required"
    assert chat.parallel_tool_calls is False
    assert chat.chat_template_kwargs == {"enable_thinking": False}
    assert chat.reasoning_effort == "low"
    assert chat.tools is not None
    assert chat.tools[0].function.name == "f"


def test_a_last_assistant_turn_is_to_be_continued() -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "The answer is ("}]
    body = translate(CountTokensRequest.model_validate({"messages": turns})).body
    said = body.model_dump()
    assert said["continue_final_message"] is True
    assert said["add_generation_prompt"] is False


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "image", "source": {}}, "messages[0].content[0].type"),
        ({"type": "text"}, "messages[0].content[0].text"),
        ({"type": "text", "text": 3}, "messages[0].content[0].text"),
        ({"type": "tool_result", "content": "x"}, "messages[0].content[0].tool_use_id"),
        (
            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
            "messages[0].content[0].content[0].type",
        ),
    ],
)
def test_what_cannot_be_served_is_named(block: dict[str, Any], field: str) -> None:
    request = CountTokensRequest.model_validate({"messages": [{"role": "user", "content": [block]}]})
    with pytest.raises(ApiError) as caught:
        translate(request)
    assert caught.value.param == field
