"""Whatever is sent, the answer is one of the expected ones and never a 500. In process, so that it runs often."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.engine_thread import ThreadTransport
from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.runtime.server.app import create_app
from deeproot.runtime.server.startup import open_for_requests
from deeproot.runtime.server.state import ServerState
from deeproot.scheduler.invariants import check_idle

from .harness import texts_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
EXPECTED = {200, 400, 404}

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70),
    st.integers(),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["user", "assistant", "system", "tool", "text", "function", "auto", "none", "<|im_end|>"]
    ),
)
keys = st.sampled_from(
    ["role", "content", "type", "text", "function", "name", "arguments", "tool_calls", "id", "self"]
)
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=5)}), max_size=2)
turns = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
    optional={
        "content": st.none() | st.text(max_size=8) | parts | json_values,
        "name": scalars,
        "tool_calls": json_values,
    },
)
tools = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {"name": st.text(min_size=1, max_size=4), "parameters": json_values}
            )
        }
    ),
    max_size=2,
)
FIELDS = [
    "model",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "n",
    "user",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "reasoning_effort",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "min_tokens",
    "repetition_penalty",
    "frequency_penalty",
    "continue_final_message",
    "add_generation_prompt",
    "best_of",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "presence_penalty",
    "suffix",
    "echo",
    "prompt",
    "messages",
]
fields = st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3)
chats = st.builds(
    lambda messages, tools, more: {"messages": messages, "tools": tools, "max_tokens": 2, **more},
    st.lists(turns, max_size=3),
    st.none() | tools,
    fields,
)
prompts = (
    st.text(max_size=8)
    | st.lists(st.integers(-1, 260), max_size=5)
    | st.lists(st.text(max_size=3), max_size=3)
)
texts = st.builds(
    lambda prompt, more: {"prompt": prompt, "max_tokens": 2, **more}, prompts | json_values, fields
)


class InProcess:
    """The application without a socket, in an event loop of its own."""

    def __init__(self, options: EngineOptions) -> None:
        self.runner = asyncio.Runner()
        self.options = options
        self.engine = load_engine(options)
        self.state = ServerState(options=ServerOptions(), model_names=("tiny",))
        self.app = create_app(self.state)
        self.runner.run(self._open())

    async def _open(self) -> None:
        transport = ThreadTransport(self.engine.scheduler, self.engine.info)
        await open_for_requests(self.state, transport, texts_of(self.engine), self.options)

    def post(self, path: str, body: bytes) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post(path, content=body)

        return self.runner.run(send())

    def close(self) -> None:
        assert self.state.serving is not None
        self.runner.run(self.state.serving.client.wait_idle())
        check_idle(self.engine.scheduler)
        assert self.state.serving.client.close()
        self.runner.close()


@pytest.fixture(scope="module")
def in_process(tiny_options: EngineOptions) -> Iterator[InProcess]:
    running = InProcess(dataclasses.replace(tiny_options, max_model_len=200))
    yield running
    running.close()


def check_answer(response: httpx.Response, body: dict[str, Any]) -> None:
    assert response.status_code in EXPECTED, (response.status_code, response.text)
    if response.status_code == 200:
        streamed = response.headers["content-type"].startswith("text/event-stream")
        assert streamed == (body.get("stream") is True)
        if streamed:
            assert response.text.endswith("data: [DONE]\n\n")
            assert '"error"' not in response.text
        else:
            assert response.json()["usage"]["completion_tokens"] <= 200
        return
    error = response.json()["error"]
    assert error["message"]
    # A sentence that names the field, wherever one can be named.
    if error["param"] is not None:
        assert error["param"].split(".")[0].split("[")[0] in FIELDS
        assert not error["param"].endswith((".str", "list[str]"))
    assert error["param"] is not None or "body" in error["message"] or "template" in error["message"]


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(body=chats)
def test_any_chat_body(in_process: InProcess, body: dict[str, Any]) -> None:
    check_answer(in_process.post(CHAT, json.dumps(body).encode()), body)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=texts)
def test_any_text_body(in_process: InProcess, body: dict[str, Any]) -> None:
    check_answer(in_process.post(TEXT, json.dumps(body).encode()), body)


@settings(max_examples=100, deadline=None)
@given(body=st.binary(max_size=30) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(in_process: InProcess, body: bytes) -> None:
    for path in (CHAT, TEXT):
        assert in_process.post(path, body).status_code in EXPECTED


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    max_tokens=st.integers(1, 40),
    stop=st.lists(st.text(min_size=1, max_size=2), max_size=3),
)
def test_stream_and_whole_agree(in_process: InProcess, seed: int, max_tokens: int, stop: list[str]) -> None:
    """The random model writes broken UTF-8 most of the time."""
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "seed": seed,
        "max_tokens": max_tokens,
        "stop": stop,
        "temperature": 2.0,
    }
    whole = in_process.post(CHAT, json.dumps(body).encode()).json()["choices"][0]
    streamed = in_process.post(CHAT, json.dumps({**body, "stream": True}).encode()).text
    events = [json.loads(line.removeprefix("data: ")) for line in streamed.split("\n\n")[:-2]]
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(pieces) == whole["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
