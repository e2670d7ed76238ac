"""Deferred tools over HTTP: the model searches, and the client sees only what comes of it."""

import json
from typing import Any

import httpx
import openai
import pytest

from .harness import RunningServer, ScriptedForward


def tool(name: str, description: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description}, **fields}


TOOLS: Any = [
    tool("look", "Looks around."),
    tool("get_weather", "Weather of a city.", defer_loading=True),
    tool("send_mail", "Sends mail.", defer_loading=True),
]


def written(name: str, **arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_a_search_and_a_call_of_what_it_found(
    server: RunningServer, script: ScriptedForward, stream: bool
) -> None:
    first, second = (
        "I search.\n" + written("tool_search", query="weather"),
        written("get_weather", city="Rome"),
    )
    seed = script.will_say(first, second)
    messages: list[Any] = [{"role": "user", "content": f"Weather? {stream}"}]
    options: Any = {"model": "tiny", "tools": TOOLS, "max_tokens": 300}
    if stream:
        with client(server).chat.completions.stream(
            messages=messages, seed=seed, stream_options={"include_usage": True}, **options
        ) as events:
            reply = events.get_final_completion()
    else:
        reply = client(server).chat.completions.create(messages=messages, seed=seed, **options)
    message, usage = reply.choices[0].message, reply.usage
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    assert message.content == "I search."
    assert reply.choices[0].finish_reason == "tool_calls"
    assert usage is not None
    assert usage.completion_tokens == len(first) + len(second) + 2
    # The next turn finds all of that in the cache, searches included.
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "fine"},
    ]
    after = client(server).chat.completions.create(messages=messages, **{**options, "max_tokens": 1}).usage
    assert after is not None
    assert after.prompt_tokens_details is not None
    # Both replies' prompts are in the usage; the second holds the first.
    held = httpx.post(f"{server.url}/tokenize", json={"messages": messages[:1], "tools": TOOLS}).json()[
        "count"
    ]
    assert after.prompt_tokens_details.cached_tokens == usage.prompt_tokens - held + len(second)
    server.wait_idle()


def test_deferred_schemas_are_not_in_the_prompt(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS}
    ids = httpx.post(f"{server.url}/tokenize", json=body).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": ids}).json()["prompt"]
    assert "look" in text
    assert "tool_search" in text
    assert "get_weather" not in text
    assert "defer_loading" not in text


def test_a_model_that_only_searches_comes_to_an_end(server: RunningServer, script: ScriptedForward) -> None:
    search = written("tool_search", query="x")
    # At most four searches; then, or without a token left, it is over.
    for limit, rounds, reason in ((600, 5, "stop"), (2 * (len(search) + 1), 2, "length")):
        seed = script.will_say(*[search] * rounds)
        reply = client(server).chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": f"a {limit}"}],
            tools=TOOLS,
            seed=seed,
            max_tokens=limit,
        )
        assert reply.choices[0].finish_reason == reason
        assert not reply.choices[0].message.tool_calls
        assert reply.usage is not None
        assert reply.usage.completion_tokens == rounds * (len(search) + 1)
    server.wait_idle()


def test_a_tool_of_that_name_is_refused(server: RunningServer) -> None:
    tools = [*TOOLS, tool("tool_search", "Mine.")]
    body = {"messages": [{"role": "user", "content": "a"}], "tools": tools}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "tools[3].function.name"


def test_errors_name_messages_as_they_were_sent(server: RunningServer) -> None:
    """The search that is put back for the forgotten call does not count."""
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "nobody", "content": "b"},
    ]
    reply = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "messages[2].role"
