"""What the server says to requests that cannot be served: in OpenAI's form, naming the field, never a 500."""

import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deeproot.runtime.options import EngineOptions, ServerOptions

from ..tiny_model import write_tiny_model
from .harness import BrokenForward, RunningServer, chat_body, running_server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def messages(*items: object) -> dict[str, object]:
    return {"messages": list(items)}


WRONG_CHAT: list[tuple[dict[str, Any], str, str]] = [
    ({}, "messages", "required"),
    (messages(), "messages", "at least 1"),
    ({"messages": "hi"}, "messages", "array"),
    (messages("hi"), "messages[0]", "object"),
    (messages({"content": "hi"}), "messages[0].role", "required"),
    (messages({"role": "boss", "content": "hi"}), "messages[0].role", "boss"),
    (messages({"role": "user", "content": 5}), "messages[0].content", "string"),
    (messages({"role": "user", "content": [{"type": "text"}]}), "messages[0].content[0].text", "string"),
    (
        messages({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
        "messages[0].content[0].type",
        "image_url",
    ),
    (
        messages({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
        "messages[0].tool_calls[0].function.arguments",
        "JSON",
    ),
    (chat_body("x", model=7), "model", "string"),
    (chat_body("x", stream="yes"), "stream", "boolean"),
    (chat_body("x", temperature="hot"), "temperature", "number"),
    (chat_body("x", temperature=-1), "temperature", "between 0 and 100"),
    (chat_body("x", top_p=0), "top_p", "above 0"),
    (chat_body("x", top_p=1.5), "top_p", "between 0 and 1"),
    (chat_body("x", top_k=-2), "top_k", "-2"),
    (chat_body("x", top_k=2.5), "top_k", "integer"),
    (chat_body("x", min_p=2), "min_p", "between 0 and 1"),
    (chat_body("x", seed=2**64), "seed", "64 bits"),
    (chat_body("x", seed=1.5), "seed", "integer"),
    (chat_body("x", max_tokens=0), "max_tokens", "at least 1"),
    (chat_body("x", max_completion_tokens=-3), "max_completion_tokens", "at least 1"),
    (chat_body("x", stop=3), "stop", "string"),
    (chat_body("x", stop=["a", 3]), "stop[1]", "string"),
    (chat_body("x", stop=["a"] * 17), "stop", "at most 16"),
    (chat_body("x", stop_token_ids=[258]), "stop_token_ids", "0 to 257"),
    (chat_body("x", n=0), "n", "between 1 and 128"),
    (chat_body("x", n=129), "n", "between 1 and 128"),
    (chat_body("x", min_tokens=3, max_tokens=2), "min_tokens", "between 0 and the 2"),
    (chat_body("x", repetition_penalty=0), "repetition_penalty", "above 0"),
    (chat_body("x", frequency_penalty=2.5), "frequency_penalty", "between -2 and 2"),
    (chat_body("x", presence_penalty="much"), "presence_penalty", "number"),
    (chat_body("x", logit_bias={"5": 101}), "logit_bias", "between -100 and 100"),
    (chat_body("x", logit_bias={"258": 1}), "logit_bias", "0 to 257"),
    (chat_body("x", logit_bias={"five": 1}), "logit_bias", "token ids"),
    (chat_body("x", logit_bias={"9" * 5000: 1}), "logit_bias", "token ids"),
    (chat_body("x", logit_bias={"5": "a"}), "logit_bias.5", "number"),
    (chat_body("x", logit_bias={str(i): 1 for i in range(1025)}), "logit_bias", "1024"),
    (
        chat_body("x", continue_final_message=True, add_generation_prompt=True),
        "add_generation_prompt",
        "set it to false",
    ),
    (chat_body("x", stream_options={"include_usage": True}), "stream_options", "stream to true"),
    (
        chat_body("x", stream=True, stream_options={"include_usage": 1}),
        "stream_options.include_usage",
        "boolean",
    ),
    (chat_body("x", tools={}), "tools", "array"),
    (chat_body("x", tools=[{"type": "function"}]), "tools[0].function", "required"),
    (chat_body("x", tools=[{"type": "retrieval", "function": {"name": "f"}}]), "tools[0].type", "function"),
    (chat_body("x", tools=[TOOL], tool_choice="any"), "tool_choice", "must be 'auto'"),
    (chat_body("x", tool_choice="required"), "tool_choice", "give tools"),
    (
        chat_body("x", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        "tool_choice",
        "'g'",
    ),
    (chat_body("x", chat_template_kwargs={"messages": []}), "chat_template_kwargs", "messages"),
    (chat_body("x", logprobs=3), "logprobs", "boolean"),
    (chat_body("x", top_logprobs=3), "top_logprobs", "set logprobs to true"),
    (chat_body("x", logprobs=True, top_logprobs=21), "top_logprobs", "between 0 and 20"),
    (chat_body("x", prompt_logprobs=1), "prompt_logprobs", "not supported"),
    (chat_body("x", response_format={"type": "yaml"}), "response_format.type", "json_schema"),
    (
        chat_body("x", response_format={"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}),
        "response_format.json_schema.schema",
        "Invalid type: strin",
    ),
    (
        chat_body("x", guided_regex="(", response_format={"type": "text"}),
        "guided_regex",
        "unclosed group",
    ),
    (chat_body("x", structured_outputs={"regex": "a", "choice": ["b"]}), "structured_outputs", "exactly one"),
    (chat_body("x", guided_choice=["a"], ignore_eos=True), "ignore_eos", "leave it out"),
    (chat_body("x", functions=[{"name": "f"}]), "functions", "not supported"),
]
WRONG_TEXT: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": 5}, "prompt", "string"),
    ({"prompt": {"a": 1}}, "prompt", "string"),
    ({"prompt": []}, "prompt", "empty list"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": ["a", ""]}, "prompt[1]", "empty"),
    ({"prompt": [1, "a"]}, "prompt[1]", "integer"),
    ({"prompt": [[1], ["a"]]}, "prompt[1][0]", "integer"),
    ({"prompt": [1, 999]}, "prompt", "999"),
    ({"prompt": ["a"] * 129}, "prompt", "128"),
    ({"prompt": "x", "echo": 1}, "echo", "boolean"),
    ({"prompt": "x", "logprobs": 21}, "logprobs", "between 0 and 20"),
    ({"prompt": "x", "logprobs": True}, "logprobs", "integer"),
    ({"prompt": "x", "max_tokens": 0}, "max_tokens", "at least 1"),
    ({"prompt": "x", "best_of": 3}, "best_of", "leave best_of out"),
    ({"prompt": ["x", "y"], "n": 65}, "n", "at most 128"),
    ({"prompt": "x", "structured_outputs": {"json": {"not": {}}}}, "structured_outputs", "Unimplemented"),
    ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [(CHAT, *case) for case in WRONG_CHAT] + [(TEXT, *case) for case in WRONG_TEXT],
)
def test_a_wrong_field_is_a_400_that_names_it(
    server: RunningServer, path: str, body: dict[str, Any], param: str, says: str
) -> None:
    response = httpx.post(server.url + path, json=body)
    error = the_error(response)
    assert response.status_code == 400, error
    assert error["param"] == param
    assert says in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"no_such_field": [1, 2]},
        {"logprobs": False, "logit_bias": {}, "presence_penalty": 0, "frequency_penalty": 0.0},
        {"top_logprobs": 0, "min_tokens": 0, "repetition_penalty": 1, "add_generation_prompt": True},
        {"response_format": {"type": "text"}, "n": 1, "user": "somebody", "metadata": {"a": "b"}},
        {"temperature": None, "stop": None, "tools": None, "seed": None, "stream": None, "max_tokens": None},
        {"stop": ""},
        {"tool_choice": "auto"},
        {"seed": -5, "top_k": -1},
        {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_fields_that_ask_for_nothing_are_let_through(server: RunningServer, fields: dict[str, Any]) -> None:
    response = httpx.post(server.url + CHAT, json=chat_body("x", **{"max_completion_tokens": 2, **fields}))
    assert response.status_code == 200, response.text


def test_content_may_be_null_parts_or_developers(server: RunningServer) -> None:
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": None},
        {"role": "user"},
    ]
    response = httpx.post(server.url + CHAT, json={"messages": turns, "max_tokens": 1})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages": "\\ud800"}', b"[" * 5000]
)
def test_bodies_that_are_no_json_objects(server: RunningServer, body: bytes) -> None:
    for path in (CHAT, TEXT):
        response = httpx.post(server.url + path, content=body)
        assert response.status_code == 400
        assert "body" in the_error(response)["message"]


def test_json_is_read_whatever_its_content_type(server: RunningServer) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    response = httpx.post(server.url + TEXT, content=body, headers={"content-type": "text/plain"})
    assert response.status_code == 200


def test_a_prompt_over_the_window_gives_both_numbers(server: RunningServer) -> None:
    response = httpx.post(server.url + TEXT, json={"prompt": "x" * 2048})
    assert response.status_code == 400
    assert "2048 tokens" in the_error(response)["message"]
    assert "2047" in the_error(response)["message"]


def test_max_tokens_over_the_window_gives_the_numbers(server: RunningServer) -> None:
    response = httpx.post(server.url + TEXT, json={"prompt": "x" * 2000, "max_tokens": 100})
    error = the_error(response)
    assert response.status_code == 400
    assert error["param"] == "max_tokens"
    assert all(number in error["message"] for number in ("2000", "100", "2100", "2048", "48"))


def test_without_max_tokens_the_rest_of_the_window_is_used(server: RunningServer) -> None:
    body = chat_body("x" * 1990, ignore_eos=True)
    answer = httpx.post(server.url + CHAT, json=body, timeout=60).json()
    assert answer["usage"]["total_tokens"] == 2048
    assert answer["choices"][0]["finish_reason"] == "length"


def test_unknown_models_and_paths(server: RunningServer) -> None:
    response = httpx.post(server.url + CHAT, json=chat_body("x", model="gpt-4"))
    assert response.status_code == 404
    assert the_error(response)["code"] == "model_not_found"
    assert the_error(httpx.get(f"{server.url}/v1/nothing"))["type"] == "not_found_error"
    assert httpx.get(server.url + CHAT).status_code == 405
    assert the_error(httpx.get(server.url + CHAT))["message"]


@pytest.fixture(scope="module")
def guarded(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    options = ServerOptions(port=0, api_keys=("first-key", "second-key"), max_body_bytes=2000)
    with running_server(tiny_options, options) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_keys(guarded: RunningServer, path: str) -> None:
    body = {**chat_body("x"), "prompt": "x", "max_tokens": 1}
    for header in ("", "Bearer", "Bearer wrong", "Basic first-key", "Bearer first-ke", "Bearer ä"):
        response = httpx.post(guarded.url + path, json=body, headers={"authorization": header.encode()})
        assert response.status_code == 401
        assert the_error(response)["code"] == "invalid_api_key"
    for key in ("first-key", "second-key"):
        response = httpx.post(guarded.url + path, json=body, headers={"authorization": f"Bearer {key}"})
        assert response.status_code == 200
    assert httpx.get(f"{guarded.url}/v1/models").status_code == 401
    assert {httpx.get(f"{guarded.url}/{path}").status_code for path in ("health", "ready", "metrics")} == {
        200
    }


def test_a_body_over_the_limit_is_refused(guarded: RunningServer) -> None:
    headers = {"authorization": "Bearer first-key"}
    body = json.dumps({"prompt": "x" * 3000, "max_tokens": 1}).encode()
    declared = httpx.post(guarded.url + TEXT, content=body, headers=headers)

    def pieces() -> Iterator[bytes]:
        yield from (body[i : i + 500] for i in range(0, len(body), 500))

    chunked = httpx.post(guarded.url + TEXT, content=pieces(), headers=headers)
    for response in (declared, chunked):
        assert response.status_code == 413
        assert "2000 bytes" in the_error(response)["message"]


def test_a_full_queue_is_a_429(tiny_options: EngineOptions) -> None:
    options = ServerOptions(port=0, max_queued_requests=2)
    with running_server(dataclasses.replace(tiny_options, max_num_seqs=2), options) as server:
        fits = httpx.post(server.url + TEXT, json={"prompt": ["a"] * 4, "max_tokens": 1})
        over = httpx.post(server.url + TEXT, json={"prompt": ["a"] * 5, "max_tokens": 1})
        assert fits.status_code == 200
        assert over.status_code == 429
        assert over.headers["retry-after"]
        assert the_error(over)["type"] == "rate_limit_error"


def test_a_model_without_a_chat_template(tiny_options: EngineOptions, tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "plain")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with running_server(dataclasses.replace(tiny_options, model=str(folder))) as server:
        refused = httpx.post(server.url + CHAT, json=chat_body("x"))
        assert refused.status_code == 400
        assert "chat template" in the_error(refused)["message"]
        assert httpx.post(server.url + TEXT, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_a_failing_forward_pass_ends_its_requests_and_no_others(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, wrap=lambda engine: BrokenForward(engine.scheduler.runner)) as server:
        broken = server.engine.scheduler.runner
        assert isinstance(broken, BrokenForward)
        broken.broken = True
        for stream in (False, True):
            response = httpx.post(server.url + CHAT, json=chat_body("x", stream=stream))
            assert response.status_code == 500
            assert "no memory left" in the_error(response)["message"]
        broken.broken = False
        assert httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=3)).status_code == 200
        server.wait_idle()
        assert server.metrics()['deeproot_requests_total{endpoint="chat",finish_reason="error"}'] == 2


def test_a_failure_in_mid_stream_ends_the_stream_with_an_error(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, wrap=lambda engine: BrokenForward(engine.scheduler.runner)) as server:
        broken = server.engine.scheduler.runner
        assert isinstance(broken, BrokenForward)
        body = chat_body("x", stream=True, ignore_eos=True)
        with httpx.stream("POST", server.url + CHAT, json=body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            next(lines)
            broken.broken = True
            events = [line.removeprefix("data: ") for line in lines if line]
        assert events[-1] == "[DONE]"
        assert "no memory left" in json.loads(events[-2])["error"]["message"]


def test_garbage_on_the_wire_hurts_nobody(server: RunningServer) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as wire:
        wire.sendall(b"\x16\x03\x01 no HTTP at all\r\n\r\n")
        assert wire.recv(100).startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{server.url}/ready").status_code == 200


def test_the_openapi_document_describes_the_bodies(server: RunningServer) -> None:
    document = httpx.get(f"{server.url}/openapi.json").json()
    body = document["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = body["$ref"].removeprefix("#/components/schemas/")
    schema = document["components"]["schemas"][name]
    assert "messages" in schema["required"]
    references = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {reference.split('"')[0] for reference in references} <= document["components"]["schemas"].keys()


def the_error(response: httpx.Response) -> dict[str, Any]:
    """The error in an answer, which must have OpenAI's form."""
    assert response.status_code >= 400
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error
