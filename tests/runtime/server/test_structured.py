"""Forms of output over HTTP, with a model whose weights are random: what it says has the form all the same."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import pytest
from openai import OpenAI
from pydantic import BaseModel, Field

from deeproot.runtime.http_api import lines_of
from deeproot.runtime.options import EngineOptions

from .harness import RunningServer, chat_body, running_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "maximum": 99, "minimum": 0},
    },
    "required": ["name", "age"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "parameters": PERSON}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[RunningServer]:
    options = EngineOptions(model=str(tiny_model), load_format="dummy", kv_cache_memory_bytes=4 * 2**20)
    with running_server(options) as running:
        yield running


def choice_of(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def streamed(server: RunningServer, body: dict[str, Any]) -> tuple[str, str]:
    """Content and finish reason."""
    content, reason = "", ""
    with httpx.stream("POST", server.url + CHAT, json={**body, "stream": True}, timeout=60) as response:
        for line in lines_of(response.iter_bytes()):
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                content += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    return content, reason


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_holds_streamed_or_not(server: RunningServer, seed: int) -> None:
    body = chat_body("Who?", response_format=FORMAT, max_tokens=300, seed=seed, temperature=1.0)
    choice = choice_of(server, CHAT, body)
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
    assert streamed(server, body) == (choice["message"]["content"], "stop")


def test_an_answer_that_is_cut_says_so(server: RunningServer) -> None:
    choice = choice_of(server, CHAT, chat_body("Who?", response_format=FORMAT, max_tokens=3))
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"guided_regex": "[0-9]{3}-[0-9]"}, "[0-9]{3}-[0-9]"),
        ({"ebnf": 'root ::= "a" [bc]'}, "a[bc]"),
        ({"regex": "x{20}", "stop": "xxx"}, ""),
    ],
)
def test_forms_of_completions(server: RunningServer, fields: dict[str, Any], pattern: str) -> None:
    choice = choice_of(server, TEXT, {"prompt": "Well: ", "max_tokens": 30, **fields})
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["text"])


def test_what_would_cut_json_short_does_not(server: RunningServer) -> None:
    cutting = [server.engine.speech.assets.tokenizer.id_of(letter) for letter in '":']
    body = chat_body("Who?", response_format=FORMAT, max_tokens=300, stop=['"', ":"], stop_token_ids=cutting)
    choice = choice_of(server, CHAT, body)
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"add", "stop"}), ({"type": "function", "function": {"name": "add"}}, {"add"})],
)
def test_forced_calls(server: RunningServer, choice: Any, names: set[str]) -> None:
    for seed in range(3):
        answer = choice_of(
            server,
            CHAT,
            chat_body(
                "Go", tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, max_tokens=400, seed=seed
            ),
        )
        assert answer["finish_reason"] == "tool_calls"
        assert answer["message"]["content"] is None
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] in names
        if call["function"]["name"] == "add":
            jsonschema.validate(json.loads(call["function"]["arguments"]), PERSON)


@pytest.mark.parametrize("form", ["qwen3_coder", "glm45", "pythonic"])
def test_forced_calls_that_are_not_written_as_json(tiny_model: Path, form: str) -> None:
    options = EngineOptions(
        model=str(tiny_model), load_format="dummy", kv_cache_memory_bytes=4 * 2**20, tool_call_parser=form
    )
    # Where others may be added, a random model goes on for long.
    closed: dict[str, Any] = {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}}
    tools = [TOOLS[0], {"type": "function", "function": closed}]
    body = chat_body("Go", tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    with running_server(options) as server:
        for seed in range(3):
            answer = choice_of(server, CHAT, {**body, "seed": seed})
            assert (answer["finish_reason"], answer["message"]["content"]) == ("tool_calls", None)
            (call,) = answer["message"]["tool_calls"]
            schema = PERSON if call["function"]["name"] == "add" else {"maxProperties": 0}
            jsonschema.validate(json.loads(call["function"]["arguments"]), schema)
        bad = {"type": "function", "function": {"name": "x", "parameters": {"minProperties": 1}}}
        response = httpx.post(server.url + CHAT, json={**body, "tools": [bad]})
        assert response.status_code == 400
        assert "tools[0].function.parameters.minProperties cannot" in response.json()["error"]["message"]


def test_a_bad_schema_hurts_nobody(server: RunningServer) -> None:
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"not": {}}}}}}
    response = httpx.post(server.url + CHAT, json=chat_body("x", response_format=bad))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format.json_schema.schema"
    assert ".properties.a cannot be enforced" in response.json()["error"]["message"]
    assert choice_of(server, CHAT, chat_body("x", max_tokens=2))["finish_reason"] == "length"
    server.wait_idle()


class Person(BaseModel):
    name: str = Field(max_length=5)
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=99)


def test_the_sdk_parses_into_a_class(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.parse(
        model="tiny", messages=[{"role": "user", "content": "Who?"}], response_format=Person, max_tokens=400
    )
    assert isinstance(answer.choices[0].message.parsed, Person)


def test_the_sdk_parses_strict_calls(server: RunningServer) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.parse(
        model="tiny",
        messages=[{"role": "user", "content": "Who?"}],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "strict": True,
                    "parameters": {**PERSON, "additionalProperties": False},
                },
            }
        ],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=400,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    jsonschema.validate(calls[0].function.parsed_arguments, PERSON)
