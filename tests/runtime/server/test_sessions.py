"""Sessions over HTTP: what becomes of their tokens is asked of the engine."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import RunningServer, running_server

Fields = dict[str, Any]
SYSTEM = {"role": "system", "content": "You are careful, and you look before you answer. " * 4}
PAGE = 16


@pytest.fixture(autouse=True)
def nothing_cached(server: RunningServer) -> Iterator[None]:
    yield
    server.wait_idle()
    scheduler = server.engine.scheduler
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))


def post(server: RunningServer, path: str, body: Fields, **headers: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", json=body, headers=headers, timeout=60)


def say(server: RunningServer, session: str, *texts: str, **fields: Any) -> Fields:
    """A request of a session; texts: turns of the user and the assistant."""
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"messages": [SYSTEM, *turns], "max_tokens": 4, "deeproot": {"session_id": session}, **fields}
    reply = post(server, "chat/completions", body)
    assert reply.status_code == 200, reply.text
    usage: Fields = reply.json()["usage"]
    return usage


def scratch(server: RunningServer) -> float:
    return server.metrics()['deeproot_cached_pages{class="scratch"}']


def test_a_fork_shares_pages_and_goes_its_own_way(server: RunningServer) -> None:
    first = say(server, "a", "Look at the first test, and at all that it needs.")
    pages = server.engine.scheduler.cache.num_pages
    told = post(server, "sessions/a/fork", {"new_id": "b"}).json()
    assert told == {"id": "b", "parent": "a", "num_tokens": told["num_tokens"], "object": "session"}
    assert told["num_tokens"] >= first["prompt_tokens"]
    assert server.engine.scheduler.cache.num_pages == pages
    again = say(server, "b", "Look at the first test, and at all that it needs.", "Done.", "Now the second.")
    assert again["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] - PAGE
    # The fork drops the question; its parent still needs that.
    say(server, "b", "Something else altogether, please.")
    kept = say(server, "a", "Look at the first test, and at all that it needs.", "Well.", "More.")
    assert kept["prompt_tokens_details"]["cached_tokens"] > first["prompt_tokens"] - PAGE
    assert scratch(server) > 0, "what the fork alone had said"
    assert post(server, "sessions/a/fork", {"new_id": "b"}).status_code == 409
    made = post(server, "sessions/a/fork", {}).json()["id"]
    assert made.startswith("a-")
    assert post(server, f"sessions/{made}/close", {}).json()["scratch_pages"] == 0, "a has it all"


def test_what_is_rewound_goes_first(server: RunningServer) -> None:
    long = "A long look at everything that there is to see here. " * 3
    say(server, "r", "Begin.", long, "Go on.")
    body = {"messages": [SYSTEM, {"role": "user", "content": "Begin."}], "add_generation_prompt": False}
    count = httpx.post(f"{server.url}/tokenize", json=body).json()["count"]
    told = post(server, "sessions/r/rewind", {"keep": body}).json()
    assert told["kept_tokens"] == count
    assert told["scratch_pages"] >= len(long) // PAGE - 1
    order = server.engine.scheduler.cache.order
    assert order.num_pages(EvictionClass.SCRATCH) == told["scratch_pages"]
    # The beginning stays, and what is scratch is still a hit until its pages are needed.
    assert (
        say(server, "r", "Begin.", "Short.", "Go on.")["prompt_tokens_details"]["cached_tokens"]
        >= count - PAGE
    )
    assert post(server, "sessions/r/rewind", {"keep_tokens": 40}).json()["scratch_pages"] > 0
    closed = post(server, "sessions/r/close", {}).json()
    assert closed["scratch_pages"] > 0
    assert post(server, "sessions/r/close", {}).status_code == 404


def test_a_session_may_be_named_in_a_header(server: RunningServer) -> None:
    body = {"messages": [SYSTEM], "max_tokens": 2}
    headers = {"X-Deeproot-Session": "by-header"}
    assert post(server, "chat/completions", body, **headers).status_code == 200
    assert post(server, "sessions/by-header/close", {}).json()["scratch_pages"] > 0


def test_what_is_wrong_is_named(server: RunningServer) -> None:
    say(server, "a", "Hi")
    for path, body, status, param in [
        ("nobody/fork", {}, 404, None),
        ("nobody/rewind", {"keep_tokens": 1}, 404, None),
        ("a/rewind", {}, 400, "keep_tokens"),
        ("a/rewind", {"keep_tokens": 0}, 400, "keep_tokens"),
        ("a/rewind", {"keep_tokens": 1, "keep": {"prompt": "x"}}, 400, "keep_tokens"),
        ("a/rewind", {"keep": {}}, 400, "keep.prompt"),
        ("a/rewind", {"keep": {"token_ids": [10**9]}}, 400, "keep.token_ids"),
        ("a/fork", {"new_id": ""}, 400, "new_id"),
        ("a/close", {"cache_salt": "other"}, 404, None),
    ]:
        reply = post(server, f"sessions/{path}", body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), (path, body)


def test_another_key_has_other_sessions(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("one", "two"))) as running:
        mine, theirs = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        body = {"messages": [SYSTEM], "max_tokens": 2, "deeproot": {"session_id": "a"}}
        assert post(running, "chat/completions", body, **mine).status_code == 200
        for action, fields in (("fork", {}), ("rewind", {"keep_tokens": 1}), ("close", {})):
            assert post(running, f"sessions/a/{action}", fields, **theirs).status_code == 404
            assert post(running, f"sessions/a/{action}", fields).status_code == 401
        assert post(running, "sessions/a/close", {}, **mine).status_code == 200
