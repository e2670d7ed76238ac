"""The Anthropic SDK as the judge of the Messages API, over a real connection."""

import asyncio
import json

import anthropic
import httpx
import pytest
from anthropic.types import Message, MessageParam, ToolParam

from .harness import RunningServer, ScriptedForward

TOOLS: list[ToolParam] = [
    {
        "name": "get_weather",
        "description": "Weather in a city",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
            "required": ["city"],
        },
    },
    {"name": "get_time", "input_schema": {"type": "object", "properties": {}}},
]
CALLS = (
    "Let me look. <tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich", "note": "a } in \\"quotes\\""}}\n</tool_call>\n'
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
)
USER: list[MessageParam] = [{"role": "user", "content": "Weather in Zürich, and the time?"}]


@pytest.fixture
def client(server: RunningServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


@pytest.fixture
def async_client(server: RunningServer) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)


def seeded(script: ScriptedForward, text: str) -> dict[str, int]:
    """Anthropic's API has no seed: it goes under our own field."""
    return {"seed": script.will_say(text)}


def check_calls(message: Message) -> None:
    text, weather, time = message.content
    assert text.type == "text"
    assert text.text.strip() == "Let me look."
    assert weather.type == time.type == "tool_use"
    assert weather.name == "get_weather"
    assert weather.input == {"city": "Zürich", "note": 'a } in "quotes"'}
    assert time.input == {}
    assert weather.id != time.id
    assert message.stop_reason == "tool_use"


def test_calls_whole(client: anthropic.Anthropic, script: ScriptedForward) -> None:
    message = client.messages.create(
        model="tiny", max_tokens=300, messages=USER, tools=TOOLS, extra_body=seeded(script, CALLS)
    )
    check_calls(message)


def test_calls_streamed(client: anthropic.Anthropic, script: ScriptedForward) -> None:
    with client.messages.stream(
        model="tiny", max_tokens=300, messages=USER, tools=TOOLS, extra_body=seeded(script, CALLS)
    ) as stream:
        kinds = [event.type for event in stream]
        check_calls(stream.get_final_message())
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"


def test_stream_and_whole_are_the_same(client: anthropic.Anthropic) -> None:
    for seed in range(6):
        arguments = {
            "model": "tiny",
            "messages": USER,
            "max_tokens": 60,
            "extra_body": {"seed": seed, "temperature": 1.5},
        }
        whole = client.messages.create(**arguments)
        with client.messages.stream(**arguments) as stream:
            streamed = stream.get_final_message()
        assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
        assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
        assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_async_streams_do_not_mix(async_client: anthropic.AsyncAnthropic, script: ScriptedForward) -> None:
    texts = [f"answer number {i} " * (i + 1) for i in range(4)]

    async def ask(text: str) -> str:
        async with async_client.messages.stream(
            model="tiny", max_tokens=300, messages=USER, extra_body=seeded(script, text)
        ) as stream:
            return await stream.get_final_text()

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, texts))

    assert asyncio.run(ask_all()) == texts


def test_cached_tokens_are_counted_beside_the_input(client: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "a story for two calls " * 20}]
    first, second = (
        client.messages.create(model="tiny", messages=messages, max_tokens=2).usage for _ in range(2)
    )
    num_prompt = client.messages.count_tokens(model="tiny", messages=messages).input_tokens
    for usage in (first, second):
        assert usage.cache_read_input_tokens is not None
        assert usage.input_tokens + usage.cache_read_input_tokens == num_prompt
    assert second.cache_read_input_tokens == num_prompt - 1


def test_a_streams_usage_is_that_of_the_whole(client: anthropic.Anthropic) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "another story for two calls " * 20}]
    arguments = {"model": "tiny", "max_tokens": 3, "messages": messages, "extra_body": {"seed": 1}}
    client.messages.create(**arguments)
    whole = client.messages.create(**arguments)
    with client.messages.stream(**arguments) as stream:
        assert stream.get_final_message().usage == whole.usage


def test_a_tool_loop(client: anthropic.Anthropic, script: ScriptedForward) -> None:
    """The reply is sent back with the tools' results, as agents do; its tokens are found in the cache."""
    first = client.messages.create(
        model="tiny",
        max_tokens=300,
        system="You have tools.",
        messages=USER,
        tools=TOOLS,
        extra_body=seeded(script, CALLS),
    )
    uses = [block for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": f"result {i}"}]}
        for i, use in enumerate(uses)
    ]
    turns = [
        *USER,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
    ]
    second = client.messages.create(
        model="tiny",
        max_tokens=300,
        system=[{"type": "text", "text": "You have tools.", "cache_control": {"type": "ephemeral"}}],
        messages=turns,
        tools=TOOLS,
        extra_body=seeded(script, "It is warm."),
    )
    assert second.content[0].type == "text"
    assert second.content[0].text == "It is warm."
    assert second.stop_reason == "end_turn"
    before = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0) + first.usage.output_tokens
    # The end token's own K and V were never computed.
    assert second.usage.cache_read_input_tokens == before - 1


def test_old_tool_results_are_cleared_on_request(
    client: anthropic.Anthropic, script: ScriptedForward
) -> None:
    turns: list[MessageParam] = list(USER)
    for i in range(4):
        use = {"type": "tool_use", "id": f"t{i}", "name": "get_time", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{i}", "content": f"result {i} " * 30}
        turns += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 100},
        "keep": {"type": "tool_uses", "value": 1},
    }
    asked = {"model": "tiny", "messages": turns, "tools": TOOLS}
    managed = {"edits": [edit]}
    num_whole = client.messages.count_tokens(**asked).input_tokens
    num_cleared = client.messages.count_tokens(
        **asked, extra_body={"context_management": managed}
    ).input_tokens
    answers = [
        client.messages.create(
            **asked, max_tokens=3, extra_body={"context_management": managed, "seed": 1}
        ).to_dict()
    ]
    with client.messages.stream(
        **asked, max_tokens=3, extra_body={"context_management": managed, "seed": 1}
    ) as stream:
        deltas = [event.to_dict() for event in stream if event.type == "message_delta"]
    for answer in (*answers, *deltas):
        (applied,) = answer["context_management"]["applied_edits"]
        assert applied["cleared_tool_uses"] == 3
        assert 0 < num_whole - num_cleared <= applied["cleared_input_tokens"] + 3 * 20
    usage = answers[0]["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == num_cleared


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, script: ScriptedForward) -> None:
    message = client.messages.create(
        model="tiny",
        max_tokens=300,
        messages=USER,
        stop_sequences=["STOP", "HALT"],
        extra_body=seeded(script, "one HALT two STOP"),
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "HALT")
    assert message.content[0].type == "text"
    assert message.content[0].text == "one "


def test_the_limit_is_a_stop_reason(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny", max_tokens=3, messages=USER, extra_body={"ignore_eos": True}
    )
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [*USER, {"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[1].content[0].tool_use_id",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": ["a"] * 1000}, "stop_sequences"),
    ],
)
def test_errors_name_the_field(server: RunningServer, change: dict[str, object], words: str) -> None:
    body = {"max_tokens": 5, "messages": USER, **change}
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    said = answer.json()
    assert said["type"] == "error"
    assert said["error"]["type"] == "invalid_request_error"
    assert said["error"]["message"].startswith(words), said


def test_errors_are_the_sdks_own(client: anthropic.Anthropic, server: RunningServer) -> None:
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        client.messages.create(model="claude", max_tokens=5, messages=USER)
    answer = httpx.post(f"{server.url}/v1/messages", content=b"{")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    # A prompt that cannot fit says both numbers.
    with pytest.raises(anthropic.BadRequestError, match="2048"):
        client.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "x" * 4000}])


def test_events_are_named_as_their_type(server: RunningServer) -> None:
    body = {"max_tokens": 5, "messages": USER, "stream": True}
    text = httpx.post(f"{server.url}/v1/messages", json=body).text
    events = [event.split("\n") for event in text.strip().split("\n\n")]
    for name, data in events:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in text
