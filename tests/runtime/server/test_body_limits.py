"""Every bound of a request's body: at it the request is served or refused for another reason, beyond it a 400 names it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_STRING_CHARS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from deeproot.runtime.server.schemas import MAX_MESSAGES, MAX_PROMPTS, MAX_TOOLS
from deeproot.runtime.structured.schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH

from .harness import RunningServer, chat_body, running_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGE = {"role": "user", "content": ""}


@pytest.fixture(scope="module")
def server(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(tiny_options) as running:
        yield running


def tool(i: int) -> dict[str, Any]:
    return {"type": "function", "function": {"name": f"f{i}"}}


def nested(levels: int) -> Any:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


BEYOND: dict[str, tuple[str, dict[str, Any], str]] = {
    "messages": (CHAT, {"messages": [MESSAGE] * (MAX_MESSAGES + 1)}, "messages"),
    "tools": (CHAT, {"tools": [tool(i) for i in range(MAX_TOOLS + 1)]}, "tools"),
    "prompts": (TEXT, {"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
    "choices": (CHAT, {"n": MAX_CHOICES + 1}, "n"),
    "stop strings": (CHAT, {"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop"),
    "a stop string": (CHAT, {"stop": "a" * (MAX_STOP_STRING_CHARS + 1)}, "stop"),
    "stop tokens": (CHAT, {"stop_token_ids": [1] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids"),
    "biases": (CHAT, {"logit_bias": {str(i): 0 for i in range(MAX_LOGIT_BIAS + 1)}}, "logit_bias"),
    "logarithms": (CHAT, {"logprobs": True, "top_logprobs": MAX_LOGPROBS + 1}, "top_logprobs"),
    "logarithms of a text": (TEXT, {"prompt": "a", "logprobs": MAX_LOGPROBS + 1}, "logprobs"),
    "depth of a schema": (
        CHAT, {"response_format": schema_format(nested(MAX_SCHEMA_DEPTH))}, "response_format.json_schema.schema"
    ),
    "size of a schema": (
        CHAT,
        {"response_format": schema_format({"enum": ["a" * 100 + str(i) for i in range(MAX_SCHEMA_BYTES // 100)]})},
        "response_format.json_schema.schema",
    ),
    "an empty salt": ("/v1/responses", {"input": "a", "cache_salt": ""}, "cache_salt"),
    "a salt": (CHAT, {"cache_salt": "a" * 1025}, "cache_salt"),
    "priority": (CHAT, {"priority": 1001}, "priority"),
    "tokens": (CHAT, {"max_tokens": 10**30}, "max_tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_beyond_a_bound_is_a_400_that_names_it(server: RunningServer, name: str) -> None:
    path, fields, param = BEYOND[name]
    response = httpx.post(server.url + path, json={**chat_body("x"), **fields}, timeout=60)
    assert response.status_code == 400, response.text[:300]
    assert response.json()["error"]["param"] == param
    assert len(response.content) < 2000


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("field", ["messages", "tools", "chat_template_kwargs", "metadata", "x"])
def test_bodies_nested_without_end(server: RunningServer, field: str, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    content = json.dumps(chat_body("x", max_tokens=1))[:-1] + f', "{field}": {deep}' + "}"
    response = httpx.post(server.url + CHAT, content=content.encode(), timeout=60)
    assert response.status_code == 400, response.text[:300]


def test_at_the_bounds_requests_are_served(server: RunningServer) -> None:
    fields = {
        "stop": ["ab" * 200] * MAX_STOP_STRINGS,
        "stop_token_ids": [1] * MAX_STOP_TOKEN_IDS,
        "logprobs": True,
        "top_logprobs": MAX_LOGPROBS,
        "priority": -1000,
        "max_tokens": 1,
    }
    assert httpx.post(server.url + CHAT, json=chat_body("x", **fields), timeout=60).status_code == 200
    many = {"prompt": ["a"] * 8, "n": MAX_CHOICES // 8, "max_tokens": 1}
    answer = httpx.post(server.url + TEXT, json=many, timeout=120)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == MAX_CHOICES
