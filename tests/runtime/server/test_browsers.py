"""Pages of other sites, and names that are not the server's."""

from collections.abc import Iterator

import httpx
import pytest

from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import RunningServer, chat_body, running_server

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(tiny_options) as running:
        yield running


@pytest.fixture(scope="module")
def open_to_one(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    options = ServerOptions(
        port=0, cors_origins=("https://good.example",), allowed_hosts=("box.example",), host="127.0.0.1"
    )
    with running_server(tiny_options, options) as running:
        yield running


def ask(server: RunningServer, **headers: str) -> httpx.Response:
    return httpx.post(server.url + CHAT, json=chat_body("x", max_tokens=1), headers=headers, timeout=60)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost.evil.example", ""]
)
def test_other_sites_pages_are_refused(server: RunningServer, origin: str) -> None:
    """Also as the plain form post that a browser sends without asking first."""
    refused = httpx.post(
        server.url + CHAT,
        content='{"messages": [{"role": "user", "content": "x"}]}',
        headers={"Origin": origin, "Content-Type": "text/plain"},
    )
    assert refused.status_code == 403
    assert "--cors-origins" in refused.json()["error"]["message"]
    assert "access-control-allow-origin" not in refused.headers


def test_its_own_page_and_programs_are_not(server: RunningServer) -> None:
    assert ask(server).status_code == 200
    assert ask(server, Origin=server.url).status_code == 200


def test_no_page_may_read_answers_unless_it_is_named(
    server: RunningServer, open_to_one: RunningServer
) -> None:
    asks_first = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
    assert httpx.options(server.url + CHAT, headers=asks_first).status_code == 403
    allowed = httpx.options(open_to_one.url + CHAT, headers=asks_first)
    assert allowed.headers["access-control-allow-origin"] == "https://good.example"
    answer = ask(open_to_one, Origin="https://good.example")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://good.example"
    assert ask(open_to_one, Origin="https://evil.example").status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[", "a b"])
def test_a_name_that_points_here_is_not_enough(server: RunningServer, host: str) -> None:
    refused = ask(server, Host=host)
    assert refused.status_code == 403
    assert "--allowed-hosts" in refused.json()["error"]["message"]
    assert httpx.get(server.url + "/v1/models", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "a.localhost", "127.0.0.1", "[::1]:80", "192.168.0.9"]
)
def test_local_names_and_addresses_are(server: RunningServer, host: str) -> None:
    assert ask(server, Host=host).status_code == 200


def test_names_can_be_allowed(open_to_one: RunningServer) -> None:
    assert ask(open_to_one, Host="box.example").status_code == 200
    assert ask(open_to_one, Host="other.example").status_code == 403


def test_with_a_key_any_name_will_do(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("key",))) as running:
        answer = ask(running, Host="proxy.example", Authorization="Bearer key")
        assert answer.status_code == 200
        assert ask(running, Host="proxy.example").status_code == 401
