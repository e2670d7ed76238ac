"""The OpenAI SDK as the judge of the Responses API, over a real connection."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam, Response

from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import RunningServer, ScriptedForward, running_server

TOOLS: list[FunctionToolParam] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Weather in a city",
        "strict": None,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
            "required": ["city"],
        },
    },
    {
        "type": "function",
        "name": "get_time",
        "strict": None,
        "parameters": {"type": "object", "properties": {}},
    },
]
CALLS = (
    "Let me look. <tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich", "note": "a } in \\"quotes\\""}}\n</tool_call>\n'
    '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
)
ASK = "Weather in Zürich, and the time?"


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def seeded(script: ScriptedForward, text: str) -> dict[str, int]:
    return {"seed": script.will_say(text)}


def num_cached(response: Response) -> int:
    assert response.usage is not None
    return response.usage.input_tokens_details.cached_tokens


def check_calls(response: Response) -> None:
    message, weather, time = response.output
    assert message.type == "message"
    assert response.output_text.strip() == "Let me look."
    assert weather.type == time.type == "function_call"
    assert json.loads(weather.arguments) == {"city": "Zürich", "note": 'a } in "quotes"'}
    assert json.loads(time.arguments) == {}
    assert weather.call_id != time.call_id
    assert (response.status, weather.status) == ("completed", "completed")


def test_calls_whole(client: openai.OpenAI, script: ScriptedForward) -> None:
    check_calls(
        client.responses.create(model="tiny", input=ASK, tools=TOOLS, extra_body=seeded(script, CALLS))
    )


def test_calls_streamed(client: openai.OpenAI, script: ScriptedForward) -> None:
    with client.responses.stream(
        model="tiny", input=ASK, tools=TOOLS, extra_body=seeded(script, CALLS)
    ) as stream:
        events = list(stream)
        check_calls(stream.get_final_response())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 3
    assert kinds.count("response.function_call_arguments.done") == 2


def test_stream_and_whole_are_the_same(client: openai.OpenAI) -> None:
    for seed in range(6):
        arguments: dict[str, Any] = {
            "model": "tiny",
            "input": ASK,
            "max_output_tokens": 60,
            "temperature": 1.5,
            "extra_body": {"seed": seed},
        }
        whole = client.responses.create(**arguments)
        events = list(client.responses.create(**arguments, stream=True))
        last = events[-1]
        assert last.type in ("response.completed", "response.incomplete")
        assert last.response.output_text == whole.output_text
        assert last.response.status == whole.status
        assert last.response.usage is not None
        assert whole.usage is not None
        assert last.response.usage.output_tokens == whole.usage.output_tokens
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert deltas == whole.output_text


def test_async_streams_do_not_mix(server: RunningServer, script: ScriptedForward) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    texts = [f"answer number {i} " * (i + 1) for i in range(4)]

    async def ask(text: str) -> str:
        async with client.responses.stream(
            model="tiny", input=ASK, extra_body=seeded(script, text)
        ) as stream:
            return (await stream.get_final_response()).output_text

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, texts))

    assert asyncio.run(ask_all()) == texts


def test_a_conversation_by_id_and_the_same_sent_whole(client: openai.OpenAI, script: ScriptedForward) -> None:
    """Three turns by `previous_response_id`; sending every item instead asks the model the same."""
    first = client.responses.create(
        model="tiny", instructions="Be brief.", input=ASK, tools=TOOLS, extra_body=seeded(script, CALLS)
    )
    calls = [item for item in first.output if item.type == "function_call"]
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"result {i}"}
        for i, call in enumerate(calls)
    ]
    arguments: dict[str, Any] = {"model": "tiny", "instructions": "Be brief.", "tools": TOOLS}
    second = client.responses.create(
        **arguments,
        previous_response_id=first.id,
        input=outputs,
        extra_body=seeded(script, "It is warm."),
    )
    assert second.output_text == "It is warm."
    assert first.usage is not None
    assert num_cached(second) == first.usage.total_tokens - 1
    third = client.responses.create(
        **arguments, previous_response_id=second.id, input="Sure?", extra_body=seeded(script, "Yes.")
    )
    whole = client.responses.create(
        **arguments,
        input=[
            {"role": "user", "content": ASK},
            *[item.model_dump(exclude_none=True) for item in first.output],
            *outputs,
            *[item.model_dump(exclude_none=True) for item in second.output],
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]},
        ],
        extra_body=seeded(script, "Yes."),
    )
    assert third.usage is not None
    assert whole.usage is not None
    assert whole.usage.input_tokens == third.usage.input_tokens
    assert num_cached(whole) == third.usage.input_tokens - 1


def test_stored_responses(client: openai.OpenAI) -> None:
    made = client.responses.create(
        model="tiny", input=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    )
    assert client.responses.retrieve(made.id).output_text == made.output_text
    newest_first = client.responses.input_items.list(made.id)
    assert [
        item.content[0].text if item.content[0].type == "input_text" else "" for item in newest_first
    ] == [
        "two",
        "one",
    ]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="no response"):
        client.responses.create(model="tiny", input="x", previous_response_id=made.id)


def test_store_false_keeps_nothing(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="x", store=False)
    assert made.store is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_the_limit_makes_a_response_incomplete(client: openai.OpenAI) -> None:
    for stream in (False, True):
        answer = client.responses.create(
            model="tiny", input="x", max_output_tokens=3, stream=stream, extra_body={"ignore_eos": True}
        )
        made = answer if isinstance(answer, Response) else list(answer)[-1].response
        assert made.status == "incomplete"
        assert made.incomplete_details is not None
        assert made.incomplete_details.reason == "max_output_tokens"
        assert made.output[-1].status == "incomplete"


def test_logarithms_of_probabilities(client: openai.OpenAI, script: ScriptedForward) -> None:
    text = "Grüße, short."
    for stream in (False, True):
        answer = client.responses.create(
            model="tiny",
            input=ASK,
            include=["message.output_text.logprobs"],
            top_logprobs=2,
            stream=stream,
            extra_body=seeded(script, text),
        )
        events = [] if isinstance(answer, Response) else list(answer)
        made = answer if isinstance(answer, Response) else events[-1].response
        part = made.output[0].content[0]
        assert part.text == text
        assert bytes(byte for one in part.logprobs for byte in one.bytes).decode() == text
        assert {len(one.top_logprobs) for one in part.logprobs} == {2}
        streamed = [
            one.token
            for event in events
            if event.type == "response.output_text.delta"
            for one in event.logprobs
        ]
        assert not stream or "".join(streamed) == "".join(one.token for one in part.logprobs)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]},
            "input[0].tool_calls[0].function.arguments",
        ),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"previous_response_id": 3}, "previous_response_id"),
    ],
)
def test_errors_name_the_field(server: RunningServer, change: dict[str, object], field: str) -> None:
    answer = httpx.post(f"{server.url}/v1/responses", json={"input": "x", **change})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field, answer.text


def test_keys_do_not_see_each_others_responses_and_a_file_outlives_the_server(
    tiny_options: EngineOptions, tmp_path: Path
) -> None:
    options = ServerOptions(port=0, api_keys=("one", "two"), response_store=tmp_path / "responses.sqlite")
    engine_options = dataclasses.replace(tiny_options, max_model_len=512)
    with running_server(engine_options, options) as running:
        one, two = (
            openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) for key in ("one", "two")
        )
        made = one.responses.create(model="tiny", input="mine", max_output_tokens=4)
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            two.responses.delete(made.id)
    with running_server(engine_options, options) as running:
        one = openai.OpenAI(base_url=f"{running.url}/v1", api_key="one", max_retries=0)
        assert one.responses.retrieve(made.id).output_text == made.output_text
