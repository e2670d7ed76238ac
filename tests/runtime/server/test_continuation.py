"""Replies that clients send back through the server: their tokens are found in the cache."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from deeproot.bench.continuation import converse
from deeproot.runtime.llm import LLM
from deeproot.runtime.sampling_options import SamplingOptions

from .harness import RunningServer, ScriptedForward
from .process import serve

TOOLS: Any = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
]
CALL = 'I look.\n\n<tool_call>\n{"name": "f",  "arguments": {"b":1, "a": [2,3.0]}}\n</tool_call>\n'
OTHER_JSON = '{"a": [2, 3], "b": 1}'


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_call_that_was_written_anew_is_found(
    client: openai.OpenAI, server: RunningServer, script: ScriptedForward, streamed: bool, exact: bool
) -> None:
    before = server.metrics()["deeproot_continuation_tokens_total"]
    messages: list[Any] = [{"role": "user", "content": f"Look, please {streamed} {exact}."}]
    options: Any = {"model": "tiny", "tools": TOOLS, "max_tokens": 150}
    seed = script.will_say(CALL)
    if streamed:
        with client.chat.completions.stream(
            messages=messages, seed=seed, stream_options={"include_usage": True}, **options
        ) as stream:
            first = stream.get_final_completion()
    else:
        first = client.chat.completions.create(messages=messages, seed=seed, **options)
    message, usage = first.choices[0].message, first.usage
    assert usage is not None
    (call,) = message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments) == json.loads(OTHER_JSON)
    back = {"id": call.id, "type": "function", "function": {"name": "f", "arguments": OTHER_JSON}}
    messages += [
        {"role": "assistant", "content": message.content, "tool_calls": [back]},
        {"role": "tool", "tool_call_id": call.id, "content": "seen"},
    ]
    second = client.chat.completions.create(
        messages=messages, extra_body={"deeproot": {"exact": exact}}, **{**options, "max_tokens": 2}
    )
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens
    saved = server.metrics()["deeproot_continuation_tokens_total"] - before
    # The output counts the end token, whose K and V nobody has needed yet.
    whole = usage.prompt_tokens + usage.completion_tokens - 1
    assert (cached == whole) is not exact
    assert (saved > 0) is not exact


@pytest.mark.parametrize("exact", ["yes", 1])
def test_exact_is_a_boolean(client: openai.OpenAI, exact: object) -> None:
    with pytest.raises(openai.BadRequestError, match=r"deeproot\.exact"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "a"}],
            extra_body={"deeproot": {"exact": exact}},
        )


def test_a_text_that_goes_on(client: openai.OpenAI, server: RunningServer) -> None:
    """The model writes random bytes: what of them is no UTF-8 reaches the client as U+FFFD, whose ids are others."""
    first = client.completions.create(model="tiny", prompt="Once", max_tokens=40, seed=3)
    text = first.choices[0].text
    assert "\ufffd" in text
    second = client.completions.create(model="tiny", prompt="Once" + text + " and on", max_tokens=2)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.total_tokens - 5


def test_llm_chat_goes_on_with_its_own_tokens(tiny_model: Path) -> None:
    options: dict[str, Any] = {"load_format": "dummy", "dtype": "float32", "device": "cpu", "page_size": 16}
    sampling = SamplingOptions(max_tokens=30, seed=5)
    used = {}
    for memory in (2**20, 0):
        with LLM(tiny_model, kv_cache_memory_bytes=2**20, continuation_memory_bytes=memory, **options) as llm:
            messages: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
            first = llm.chat(messages, sampling)
            messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And?"}]
            second = llm.chat(messages, sampling)
            used[memory] = second.usage.cached, llm.continuation_tokens
    cached, saved = used[2**20]
    assert cached == first.usage.prompt + first.usage.output - 1
    assert saved == first.usage.output
    assert used[0][0] < cached
    assert used[0][1] == 0


@pytest.mark.parametrize("page_size", [16, 128])
def test_the_real_model_computes_only_what_is_new(smollm2_path: Path, page_size: int) -> None:
    """Its own replies at temperature 0.8, sent back as clients do that parse them."""
    flags = ["--kv-cache-memory-bytes", "256MiB", "--page-size", str(page_size)]
    with serve("--model", str(smollm2_path), *flags) as process:
        client = openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0)
        turns = converse(client, "SmolLM2-135M-Instruct", 4, rewrite=True)
    assert len(turns) == 4
    assert [turn.excess for turn in turns[1:] if turn.excess > 4] == []
