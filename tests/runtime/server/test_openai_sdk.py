"""The OpenAI SDK as the judge of the protocol, over a real connection."""

import asyncio
import json

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

from .harness import RunningServer, ScriptedForward

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}},
    },
]
CALLS = (
    "Let me look. <tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich", "note": "a } in \\"quotes\\""}}\n</tool_call>\n'
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
)
USER: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Weather in Zürich, and the time?"}]


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def async_client(server: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("gpt-4")


def test_stream_and_whole_are_the_same_text(client: openai.OpenAI) -> None:
    for seed in range(6):
        arguments = {"model": "tiny", "messages": USER, "max_tokens": 60, "seed": seed, "temperature": 1.5}
        whole = client.chat.completions.create(**arguments)
        chunks = list(
            client.chat.completions.create(**arguments, stream=True, stream_options={"include_usage": True})
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
        assert streamed == whole.choices[0].message.content
        assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert len({chunk.id for chunk in chunks}) == 1


def test_the_second_request_finds_the_prefix_in_the_cache(client: openai.OpenAI) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "one long story " * 20}]
    first, second = (
        client.chat.completions.create(model="tiny", messages=messages, max_tokens=2).usage for _ in range(2)
    )
    assert first is not None
    assert second is not None
    assert first.prompt_tokens == second.prompt_tokens > 300
    assert second.prompt_tokens_details is not None
    # All but the last token, which is always computed.
    assert second.prompt_tokens_details.cached_tokens == second.prompt_tokens - 1


def test_tool_calls_whole(client: openai.OpenAI, script: ScriptedForward) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=USER, tools=TOOLS, tool_choice="auto", seed=script.will_say(CALLS)
    )
    check_calls(answer)


def test_tool_calls_streamed(client: openai.OpenAI, script: ScriptedForward) -> None:
    with client.chat.completions.stream(
        model="tiny", messages=USER, tools=TOOLS, seed=script.will_say(CALLS)
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_completion()
    check_calls(answer)
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == 2


def test_tool_call_deltas_have_openais_shape(client: openai.OpenAI, script: ScriptedForward) -> None:
    stream = client.chat.completions.create(
        model="tiny", messages=USER, tools=TOOLS, seed=script.will_say(CALLS), stream=True
    )
    started: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            assert call.function is not None
            if call.index not in started:
                assert call.id
                assert call.type == "function"
                assert call.function.name
                started[call.index] = call.function.name
            else:
                assert call.id is None
                assert call.function.name is None
            arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert started == {0: "get_weather", 1: "get_time"}
    assert json.loads(arguments[0])["city"] == "Zürich"
    assert json.loads(arguments[1]) == {}


def test_one_call_only_when_parallel_calls_are_off(client: openai.OpenAI, script: ScriptedForward) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=USER, tools=TOOLS, parallel_tool_calls=False, seed=script.will_say(CALLS)
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.name for call in calls if call.type == "function"] == ["get_weather"]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage is not None
    assert answer.usage.completion_tokens < len(CALLS)


@pytest.mark.parametrize("extra", [{"tool_choice": "none", "tools": TOOLS}, {}])
def test_without_tools_a_call_is_text(
    client: openai.OpenAI, script: ScriptedForward, extra: dict[str, object]
) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=USER, seed=script.will_say(CALLS), extra_body=extra
    )
    assert answer.choices[0].message.content == CALLS
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"


def test_a_call_cut_off_by_max_tokens_is_text_and_ends_in_length(
    client: openai.OpenAI, script: ScriptedForward
) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=USER, tools=TOOLS, max_tokens=40, seed=script.will_say(CALLS)
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is None
    assert choice.message.content is not None
    assert CALLS.startswith(choice.message.content)


def test_the_tool_loop(client: openai.OpenAI, script: ScriptedForward) -> None:
    """Ask, run both tools, give their results back, get an answer."""
    messages = list(USER)
    first = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, seed=script.will_say(CALLS)
    )
    message = first.choices[0].message
    messages.append(message.to_dict())  # type: ignore[arg-type]
    results = [(call.id, "12:30, sunny") for call in message.tool_calls or []]
    messages += [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]
    second = client.chat.completions.create(
        model="tiny", messages=messages, tools=TOOLS, seed=script.will_say("It is sunny, half past twelve.")
    )
    assert second.choices[0].message.content == "It is sunny, half past twelve."
    assert second.choices[0].finish_reason == "stop"
    # The first turn's prompt and answer were in the cache, up to the end of its text.
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens


def test_stop_strings_cut_the_text_and_the_usage(client: openai.OpenAI, script: ScriptedForward) -> None:
    text = "one two three four five"
    for stop, expected in (("thr", "one two "), (["zzz", " four"], "one two three"), (["nothing"], text)):
        answers = [
            client.chat.completions.create(
                model="tiny", messages=USER, seed=script.will_say(text), stop=stop
            ),
            client.chat.completions.create(
                model="tiny", messages=USER, seed=script.will_say(text), stop=stop, stream=True
            ),
        ]
        whole = answers[0]
        assert isinstance(whole, ChatCompletion)
        assert whole.choices[0].message.content == expected
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= len(expected) + 5
        pieces = [chunk.choices[0].delta.content or "" for chunk in answers[1]]
        assert "".join(pieces) == expected


def test_text_completions_of_several_prompts(client: openai.OpenAI) -> None:
    arguments = {"model": "tiny", "prompt": ["one", "two", "three"], "max_tokens": 12, "seed": 3}
    whole = client.completions.create(**arguments)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    streamed = {0: "", 1: "", 2: ""}
    reasons: dict[int, str] = {}
    for chunk in client.completions.create(**arguments, stream=True):
        choice = chunk.choices[0]
        streamed[choice.index] += choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert streamed == {choice.index: choice.text for choice in whole.choices}
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    alone = client.completions.create(**{**arguments, "prompt": "two"})
    assert alone.choices[0].text == whole.choices[1].text
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 11


def test_token_ids_are_a_prompt(client: openai.OpenAI, server: RunningServer) -> None:
    ids = server.engine.speech.assets.tokenizer.encode_prompt("one two").tolist()
    arguments = {"model": "tiny", "max_tokens": 10, "temperature": 0}
    by_text = client.completions.create(**arguments, prompt="one two")
    by_ids = client.completions.create(**arguments, prompt=ids)
    both = client.completions.create(**arguments, prompt=[ids, ids])
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert [choice.text for choice in both.choices] == [by_ids.choices[0].text] * 2


def test_completions_default_to_sixteen_tokens(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt="x", extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


def test_many_async_streams_at_once(async_client: openai.AsyncOpenAI, server: RunningServer) -> None:
    async def one(seed: int, stream: bool) -> str:
        arguments = {"model": "tiny", "messages": USER, "max_tokens": 30, "seed": seed}
        if not stream:
            answer = await async_client.chat.completions.create(**arguments)
            return answer.choices[0].message.content or ""
        chunks = await async_client.chat.completions.create(**arguments, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])

    async def both() -> tuple[list[str], list[str]]:
        async with async_client:
            streamed = await asyncio.gather(*(one(seed, True) for seed in range(20)))
            whole = await asyncio.gather(*(one(seed, False) for seed in range(20)))
        return list(streamed), list(whole)

    streamed, whole = asyncio.run(both())
    assert streamed == whole
    assert len(set(whole)) > 10
    server.wait_idle()


def check_calls(answer: ChatCompletion) -> None:
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    calls = choice.message.tool_calls
    assert calls is not None
    assert len({call.id for call in calls}) == 2
    functions = [call.function for call in calls if call.type == "function"]
    assert [function.name for function in functions] == ["get_weather", "get_time"]
    assert json.loads(functions[0].arguments) == {"city": "Zürich", "note": 'a } in "quotes"'}
    assert json.loads(functions[1].arguments) == {}
