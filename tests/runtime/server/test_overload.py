"""More than a server can take: what is turned away, cut off or ended, and that the others notice nothing."""

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from deeproot.runtime.options import EngineOptions, LimitOptions, ServerOptions

from .harness import RunningServer, SlowForward, chat_body, running_server, wait_until

CHAT = "/v1/chat/completions"
ENDLESS = {"max_tokens": 700, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    """Two requests run, two wait; a step takes a while."""
    options = dataclasses.replace(tiny_options, max_num_seqs=2)
    limits = LimitOptions(request_timeout_s=20.0, upload_timeout_s=0.5)
    server_options = ServerOptions(port=0, max_queued_requests=2, limits=limits)
    with running_server(
        options, server_options, lambda engine: SlowForward(engine.scheduler.runner, seconds=0.03)
    ) as running:
        yield running


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(
        self, server: RunningServer, headers: dict[str, str] | None = None, **fields: object
    ) -> None:
        super().__init__()
        self._url, self._headers = server.url + CHAT, headers or {}
        self._body = chat_body("x", **{**ENDLESS, **fields})
        self.response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self.response = httpx.post(self._url, json=self._body, headers=self._headers, timeout=60)

    def result(self) -> httpx.Response:
        self.join(60)
        assert self.response is not None
        return self.response


def inflight(server: RunningServer) -> int:
    assert server.state.serving is not None
    return server.state.serving.client.num_inflight


def fill(server: RunningServer, **fields: object) -> list[Asked]:
    asked = []
    for i in range(4):
        asked.append(Asked(server, **fields))
        wait_until(lambda n=i + 1: inflight(server) == n)  # type: ignore[misc]
    return asked


def error_of(response: httpx.Response) -> dict[str, str]:
    error: dict[str, str] = response.json()["error"]
    return error


def test_a_full_queue_turns_away_at_once_and_takes_again_later(slow: RunningServer) -> None:
    asked = fill(slow, max_tokens=20)
    refused = httpx.post(slow.url + CHAT, json=chat_body("x"))
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert error_of(refused)["code"] == "queue_full"
    assert [one.result().status_code for one in asked] == [200] * 4
    slow.wait_idle()
    assert httpx.post(slow.url + CHAT, json=chat_body("x", max_tokens=1)).status_code == 200


@pytest.mark.parametrize("how", ["body", "header"])
def test_the_least_important_makes_way(slow: RunningServer, how: str) -> None:
    before = slow.metrics()["deeproot_requests_shed_total"]
    asked = fill(slow, max_tokens=20, priority=5)
    fields = {"priority": -1} if how == "body" else {}
    headers = {"X-Deeproot-Priority": "-1"} if how == "header" else {}
    urgent = httpx.post(
        slow.url + CHAT, json=chat_body("x", max_tokens=1, **fields), headers=headers, timeout=60
    )
    assert urgent.status_code == 200
    results = [one.result() for one in asked]
    # The newest of those that waited; those that ran are left alone.
    assert [result.status_code for result in results] == [200, 200, 200, 429]
    assert "more important" in error_of(results[3])["message"]
    assert results[3].headers["Retry-After"]
    slow.wait_idle()
    assert slow.metrics()["deeproot_requests_shed_total"] == before + 1


def test_nobody_makes_way_for_an_equal(slow: RunningServer) -> None:
    asked = fill(slow, max_tokens=20, priority=5)
    assert httpx.post(slow.url + CHAT, json=chat_body("x", priority=5)).status_code == 429
    assert [one.result().status_code for one in asked] == [200] * 4
    slow.wait_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_deadline_ends_the_request(slow: RunningServer, stream: bool) -> None:
    headers = {"X-Deeproot-Timeout": "0.4"}
    body = chat_body("x", stream=stream, **ENDLESS)
    response = httpx.post(slow.url + CHAT, json=body, headers=headers, timeout=60)
    if stream:
        assert response.status_code == 200
        *events, last = [line for line in response.text.split("\n\n") if line]
        assert last == "data: [DONE]"
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert len(events) > 2
    else:
        assert response.status_code == 504
        error = error_of(response)
    assert "within 0.4 s" in error["message"]
    assert error["code"] == "deadline_exceeded"
    slow.wait_idle(5.0)
    assert slow.metrics()["deeproot_deadlines_exceeded_total"] >= 1


def test_a_deadline_holds_in_the_queue_too(slow: RunningServer) -> None:
    asked = [Asked(slow, max_tokens=40) for _ in range(2)]
    wait_until(lambda: inflight(slow) == 2)
    late = httpx.post(slow.url + CHAT, json=chat_body("x"), headers={"X-Deeproot-Timeout": "0.2"}, timeout=60)
    assert late.status_code == 504
    assert [one.result().status_code for one in asked] == [200] * 2
    slow.wait_idle()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Deeproot-Timeout", "soon"),
        ("X-Deeproot-Timeout", "0"),
        ("X-Deeproot-Timeout", "nan"),
        ("X-Deeproot-Timeout", "-1"),
        ("X-Deeproot-Priority", "high"),
        ("X-Deeproot-Priority", "1.5"),
        ("X-Deeproot-Priority", "9" * 5000),
        ("X-Deeproot-Priority", "1001"),
    ],
)
def test_headers_that_make_no_sense_are_named(slow: RunningServer, name: str, value: str) -> None:
    refused = httpx.post(slow.url + CHAT, json=chat_body("x"), headers={name: value})
    assert refused.status_code == 400
    assert error_of(refused)["param"] == name.lower()


def test_a_body_that_does_not_come_is_not_waited_for(slow: RunningServer) -> None:
    port = int(slow.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        )
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_tenants_limits_leave_other_tenants_alone(tiny_options: EngineOptions) -> None:
    limits = LimitOptions(concurrent_requests=1, tokens_per_minute=1000)
    options = ServerOptions(port=0, api_keys=("one", "two"), limits=limits)
    with running_server(
        tiny_options, options, lambda engine: SlowForward(engine.scheduler.runner, seconds=0.02)
    ) as server:
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        busy = Asked(server, one, max_tokens=60)
        wait_until(lambda: inflight(server) == 1)
        refused = httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1), headers=one)
        assert refused.status_code == 429
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        assert (
            httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1), headers=two).status_code == 200
        )
        assert busy.result().status_code == 200
        long = chat_body("x" * 1200, max_tokens=1)
        assert httpx.post(server.url + CHAT, json=long, headers=one, timeout=60).status_code == 200
        spent = httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1), headers=one)
        assert spent.status_code == 429
        assert "1000 tokens a minute" in error_of(spent)["message"]
        assert 1 <= int(spent.headers["Retry-After"]) <= 60
        # On every surface, in its own form.
        anthropic = httpx.post(
            server.url + "/v1/messages",
            json={"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
            headers=one,
        )
        assert anthropic.status_code == 429
        assert anthropic.json()["error"]["type"] == "rate_limit_error"
        assert (
            httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1), headers=two).status_code == 200
        )
        server.wait_idle()


def test_a_client_that_does_not_read_is_cut_off_and_others_go_on(tiny_options: EngineOptions) -> None:
    """Each token brings all logarithms that can be had, so that the connection is soon full."""
    options = ServerOptions(port=0, limits=LimitOptions(slow_reader_timeout_s=1.0))
    with running_server(tiny_options, options) as server:
        body = json.dumps(
            chat_body("x", stream=True, logprobs=True, top_logprobs=20, n=16, **ENDLESS)
        ).encode()
        port = int(server.url.rsplit(":", 1)[1])
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            connection.sendall(head + body)
            assert (
                httpx.post(server.url + CHAT, json=chat_body("y", max_tokens=5), timeout=60).status_code
                == 200
            )
            wait_until(lambda: server.metrics()["deeproot_slow_readers_total"] == 1)
            server.wait_idle()
            # The connection is gone, not left to the client's goodwill: what is in flight is read, and no end follows.
            connection.settimeout(20)
            assert b"[DONE]" not in rest_of(connection)
        assert httpx.post(server.url + CHAT, json=chat_body("y", max_tokens=5), timeout=60).status_code == 200


def rest_of(connection: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 20):
            data += piece
    return bytes(data)
