"""Reasoning and calls of a format other than the template's, over HTTP, streamed and not."""

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from deeproot.runtime.options import EngineOptions

from .harness import RunningServer, ScriptedForward, running_server

THOUGHTS, ANSWER = "I should look.\nTwice.", "It is <b>fine</b>."
CALL = "<tool_call>\n<function=look>\n<parameter=where>\n1 < 2\n</parameter>\n<parameter=times>\n2\n</parameter>\n</function>\n</tool_call>"
PROPERTIES = {"where": {"type": "string"}, "times": {"type": "integer"}}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]


@pytest.fixture(scope="module")
def server(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    options = dataclasses.replace(
        tiny_options, reasoning_parser="deepseek_r1", tool_call_parser="qwen3_coder"
    )
    with running_server(
        options, wrap=lambda engine: ScriptedForward(engine.scheduler.runner, engine.speech.assets.tokenizer)
    ) as running:
        yield running


def ask(server: RunningServer, seed: int, *, stream: bool, **fields: Any) -> tuple[dict[str, Any], str, Any]:
    """The message, how it ended and the usage."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    options: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "?"}],
        "seed": seed,
        "max_tokens": 160,
    }
    if not stream:
        whole = client.chat.completions.create(**options, **fields)
        return whole.choices[0].message.model_dump(), whole.choices[0].finish_reason, whole.usage
    message: dict[str, Any] = {}
    reason, usage = "", None
    for chunk in client.chat.completions.create(
        **options, **fields, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            delta = choice.delta.model_dump(exclude_unset=True)
            for call in delta.pop("tool_calls", ()):
                message.setdefault("tool_calls", []).append(call)
            for name, text in delta.items():
                message[name] = message.get(name, "") + text
    return message, reason, usage


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_apart(server: RunningServer, script: ScriptedForward, stream: bool) -> None:
    seed = script.will_say(f"<think>\n{THOUGHTS}\n</think>\n\n{ANSWER}")
    message, reason, usage = ask(server, seed, stream=stream)
    assert message["content"] == ANSWER
    assert message["reasoning_content"] == message["reasoning"] == THOUGHTS
    assert reason == "stop"
    assert usage.completion_tokens_details.reasoning_tokens == len(f"\n{THOUGHTS}\n</think>") + 1
    assert usage.completion_tokens == len(f"<think>\n{THOUGHTS}\n</think>\n\n{ANSWER}") + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_after_reasoning(server: RunningServer, script: ScriptedForward, stream: bool) -> None:
    seed = script.will_say(f"<think>{THOUGHTS}</think>\n{CALL}")
    message, reason, _ = ask(server, seed, stream=stream, tools=TOOLS)
    assert message["reasoning_content"] == THOUGHTS
    assert not message["content"]
    parts = message["tool_calls"]
    assert parts[0]["function"]["name"] == "look"
    arguments = "".join(part["function"]["arguments"] for part in parts)
    assert json.loads(arguments) == {"where": "1 < 2", "times": 2}
    assert reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_that_does_not_end(server: RunningServer, script: ScriptedForward, stream: bool) -> None:
    message, reason, usage = ask(server, script.will_say("<think>\nhm"), stream=stream)
    assert (message["content"], message["reasoning_content"], reason) == ("", "hm", "stop")
    assert usage.completion_tokens_details.reasoning_tokens == len(">\nhm")


def test_reasoning_in_the_content_on_request(server: RunningServer, script: ScriptedForward) -> None:
    text = f"<think>\n{THOUGHTS}\n</think>\n\n{ANSWER}"
    message, _, usage = ask(
        server, script.will_say(text), stream=False, extra_body={"separate_reasoning": False}
    )
    assert message["content"] == text
    assert "reasoning_content" not in message
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_a_call_that_was_cut_is_content_and_ends_in_length(
    server: RunningServer, script: ScriptedForward
) -> None:
    message, reason, _ = ask(server, script.will_say(CALL + "x" * 100), stream=False, tools=TOOLS)
    assert (len(message["tool_calls"]), reason) == (1, "length")
    cut = script.will_say("y" * 60 + CALL)  # the limit falls into the last parameter's end
    message, reason, _ = ask(server, cut, stream=False, tools=TOOLS)
    assert (message["content"], message["tool_calls"], reason) == (("y" * 60 + CALL)[:160], None, "length")
