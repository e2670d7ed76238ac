"""What the server says to requests that cannot be served: in OpenAI's form, naming the field, never a 500."""

import dataclasses
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from deeproot.runtime.http_api import lines_of
from deeproot.runtime.options import EngineOptions, ServerOptions

from ..tiny_model import write_tiny_model
from .harness import BrokenForward, RunningServer, chat_body, running_server
from .refusals import CHAT, TEXT, the_error


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
            lines = lines_of(response.iter_bytes())
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
