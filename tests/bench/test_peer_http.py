"""The API in front of peers that have none: what it answers, and what it says of bad requests and failures."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from deeproot.bench.peer_http import Messages, handler


@dataclass
class Said:
    """Two pieces, and after them the failure if there is one."""

    text: str
    failure: str | None
    prompt_tokens: int = 7

    def pieces(self) -> Iterator[str]:
        yield from self.text
        if self.failure is not None:
            raise RuntimeError(self.failure)


class Engine:
    def answer(self, messages: Messages, max_tokens: int, *, ignore_eos: bool) -> Said:
        (message,) = messages
        said = message["content"][:max_tokens] + ("!" if ignore_eos else "")
        return Said(said, "out of memory" if message["role"] == "fail" else None)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(Engine())) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def chunks(url: str, **asked: Any) -> list[dict[str, Any]]:
    text = httpx.post(f"{url}/chat/completions", json=asked).raise_for_status().text
    *lines, end = [line[6:] for line in text.splitlines() if line]
    assert end == "[DONE]"
    return [json.loads(line) for line in lines]


def test_pieces_and_usage(url: str) -> None:
    assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "model"
    messages = [{"role": "user", "content": "añb"}]
    *pieces, end = chunks(url, messages=messages, max_tokens=2, ignore_eos=True)
    assert [piece["choices"][0]["delta"]["content"] for piece in pieces] == ["a", "ñ", "!"]
    assert end["choices"][0]["finish_reason"] == "stop"
    assert end["usage"] == {"prompt_tokens": 7, "completion_tokens": 3}


def test_a_failure_is_said_in_the_stream(url: str) -> None:
    piece, error = chunks(url, messages=[{"role": "fail", "content": "a"}], max_tokens=1)
    assert piece["choices"][0]["delta"]["content"] == "a"
    assert error == {"error": {"message": "out of memory"}}


@pytest.mark.parametrize(
    "body", [b"no JSON", b"[]", b'{"messages": []}', b'{"messages": [], "max_tokens": "x"}']
)
def test_a_bad_request_is_told_what_to_give(url: str, body: bytes) -> None:
    answer = httpx.post(f"{url}/chat/completions", content=body)
    assert answer.status_code == 400
    assert "give JSON with messages and max_tokens" in answer.json()["error"]["message"]
