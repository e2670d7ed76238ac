"""The whole way once: `deeproot serve` with the real small model, and clients as users have them."""

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam, ChatCompletionToolParam

from deeproot.runtime.http_api import lines_of

from .harness import parse_metrics, wait_until
from .process import ServeProcess, run_command, serve

MODEL = "SmolLM2-135M-Instruct"
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Name of the city"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Get the current time in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    },
]


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[ServeProcess]:
    with serve("--model", str(smollm2_path), "--kv-cache-memory-bytes", "512MiB", ready=False) as process:
        # It answers while it loads, and says so.
        wait_until(lambda: status(process, "/health") == 200, 120)
        loading = httpx.get(f"{process.url}/ready")
        if loading.status_code != 200:
            assert loading.status_code == 503
            assert loading.headers["retry-after"]
            assert httpx.post(f"{process.url}/v1/completions", json={"prompt": "x"}).status_code == 503
        process.wait_ready()
        assert status(process, "/ready") == 200
        yield process
        process.signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert not any("Traceback" in line for line in process.stderr), process.stderr


def status(server: ServeProcess, path: str) -> int:
    try:
        return httpx.get(server.url + path).status_code
    except httpx.TransportError:
        return 0


@pytest.fixture(scope="module")
def client(server: ServeProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_it_knows_the_capital_of_france(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_completion_tokens=20,
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("streamed", [False, True])
def test_the_tool_loop(client: openai.OpenAI, streamed: bool) -> None:
    """Two calls of the API with weather and time, as an agent makes them. What so small a model says may be silly:
    if it calls no tool, the loop goes on as if it had, which exercises the same protocol."""
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You are a helpful assistant. Use the tools."},
        {"role": "user", "content": "What is the weather in Paris, and what time is it there?"},
    ]
    first = ask(client, messages, streamed)
    if not first.tool_calls:
        first = ChatCompletionMessage.model_validate(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call_{name}",
                        "type": "function",
                        "function": {"name": name, "arguments": '{"city": "Paris"}'},
                    }
                    for name in ("get_weather", "get_time")
                ],
            }
        )
    messages.append(first.to_dict())  # type: ignore[arg-type]
    for call in first.tool_calls or []:
        assert call.type == "function"
        assert isinstance(json.loads(call.function.arguments), dict)
        result = {
            "get_weather": "18 degrees, sunny",
            "get_time": datetime(2026, 5, 1, 12, 30, tzinfo=UTC).isoformat(),
        }
        content = result.get(call.function.name, f"There is no tool {call.function.name}.")
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    second = ask(client, messages, streamed)
    assert second.content or second.tool_calls


def ask(
    client: openai.OpenAI, messages: list[ChatCompletionMessageParam], streamed: bool
) -> ChatCompletionMessage:
    """One call of the API: the same answer whole or streamed, with an account that adds up."""
    arguments = {"model": MODEL, "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 40}
    if streamed:
        with client.chat.completions.stream(**arguments, stream_options={"include_usage": True}) as stream:
            for _ in stream:
                pass
            try:
                answer = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:
                answer = cut.completion
    else:
        answer = client.chat.completions.create(**arguments)
    choice = answer.choices[0]
    assert choice.finish_reason in ("stop", "length", "tool_calls")
    assert (choice.finish_reason == "tool_calls") <= bool(choice.message.tool_calls)
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 100
    return choice.message


def test_a_long_prefix_is_reused(client: openai.OpenAI) -> None:
    document = "The keeper wrote down the wind, the tide and the ships that passed the light. " * 60
    usages = []
    for question in ("Who wrote?", "What passed?"):
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": document}, {"role": "user", "content": question}],
            max_tokens=4,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        usages.append((answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens or 0))
    (first_prompt, first_cached), (second_prompt, second_cached) = usages
    assert first_prompt > 1000
    assert first_cached < 100
    # All but the question and the end of the template.
    assert second_prompt - 20 <= second_cached < second_prompt


def test_a_client_that_leaves_frees_its_request(server: ServeProcess) -> None:
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 2000,
        "ignore_eos": True,
    }
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=httpx.Timeout(60, read=0.05))
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60
    ) as answer:
        lines = lines_of(answer.iter_bytes())
        next(lines)
        assert metrics(server)["deeproot_requests_running"] == 1
    wait_until(lambda: metrics(server)["deeproot_requests_running"] == 0)
    after = metrics(server)
    assert after["deeproot_requests_waiting"] == 0
    assert after["deeproot_pages_locked"] == 0
    assert after['deeproot_pages{state="private"}'] == 0


def metrics(server: ServeProcess) -> dict[str, float]:
    return parse_metrics(httpx.get(f"{server.url}/metrics").text)


def test_chat_through_a_pipe(server: ServeProcess) -> None:
    done = run_command(
        "chat", "--url", server.url, "--temperature", "0", stdin="What is the capital of France?\n"
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "tokens" in done.stderr
    assert "cached" in done.stderr
