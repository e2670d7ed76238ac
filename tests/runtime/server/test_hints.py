"""Hints over HTTP: what the engine then keeps is asked of the engine."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from deeproot.engine.eviction import EvictionClass, class_of
from deeproot.runtime.server.hinting import ROOT_LEASE_S
from deeproot.scheduler.loop import take_stats

from .harness import RunningServer, ScriptedForward, wait_until

ROOT, TRUNK, LEAF = EvictionClass.ROOT, EvictionClass.TRUNK, EvictionClass.LEAF
Message = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks around."}}]
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
SYSTEM: Message = {"role": "system", "content": "You are careful, and you look before you answer. " * 4}


@pytest.fixture(autouse=True)
def nothing_cached(server: RunningServer) -> Iterator[None]:
    yield
    server.wait_idle()
    scheduler = server.engine.scheduler
    wait_until(lambda: not server.state.serving.background)  # type: ignore[union-attr]
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))
    assert len(scheduler.cache.leases) == 0


def chat(server: RunningServer, messages: list[Message], **fields: Any) -> Message:
    headers = fields.pop("headers", {})
    body = {"messages": messages, "max_tokens": 4, **fields}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: Message = reply.json()
    return answer


def leases(server: RunningServer) -> list[tuple[EvictionClass, int, int]]:
    """Class, first token and end of each, once all has been told to the engine."""
    serving = server.state.serving
    assert serving is not None
    wait_until(lambda: not serving.background)
    running = server.engine.scheduler.cache.leases.running()
    found = [
        (class_of(one.rank), one.start // 4, one.node.end // 4) for one in running if one.node is not None
    ]
    return sorted(found, key=lambda one: one[1:])


def floor(tokens: int) -> int:
    return tokens // 16 * 16


def tokens_of(server: RunningServer, messages: list[Message]) -> int:
    body = {"messages": messages, "add_generation_prompt": False}
    count: int = httpx.post(f"{server.url}/tokenize", json=body).json()["count"]
    return count


def test_a_plain_prompt_leases_nothing(server: RunningServer) -> None:
    chat(server, [SYSTEM, {"role": "user", "content": "one shot"}])
    assert leases(server) == []


def test_a_root_counts_once_a_second_session_has_it(server: RunningServer) -> None:
    system = {"role": "system", "content": "shared root: " + "be kind. " * 20}
    root = floor(tokens_of(server, [system]))
    for _ in range(2):  # the same conversation twice is no second session
        chat(server, [system, {"role": "user", "content": "first"}])
    assert leases(server) == []
    chat(server, [system, {"role": "user", "content": "second"}])
    assert leases(server) == [(ROOT, 0, root)]
    (lease,) = server.engine.scheduler.cache.leases.running()
    assert lease.seconds == ROOT_LEASE_S
    chat(server, [system, {"role": "user", "content": "third"}])
    assert leases(server) == [(ROOT, 0, root)], "one lease, prolonged"
    chat(server, [system, {"role": "user", "content": "fourth"}], cache_salt="other")
    assert len(leases(server)) == 1, "another salt's first session"


def test_a_call_is_waited_for_as_long_as_its_tool_takes(
    server: RunningServer, script: ScriptedForward
) -> None:
    serving = server.state.serving
    assert serving is not None
    messages = [SYSTEM, {"role": "user", "content": "What is there? " * 5}]
    told = chat(server, messages, tools=TOOLS, seed=script.will_say(CALL), max_tokens=200)
    held = leases(server)
    assert [kind for kind, _, _ in held] == [LEAF] or [kind for kind, _, _ in held] == [TRUNK, LEAF]
    end = floor(told["usage"]["total_tokens"] - 1)
    assert held[-1][2] == end
    reply = told["choices"][0]["message"]
    messages += [
        reply,
        {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "A room. " * 9},
    ]
    told = chat(server, messages, tools=TOOLS, seed=script.will_say(CALL), max_tokens=200)
    held = leases(server)
    assert [kind for kind, _, _ in held] == [TRUNK, LEAF], "of the newest turn alone"
    (trunk, leaf) = held
    assert trunk[2] == leaf[1]
    assert leaf[2] == floor(told["usage"]["total_tokens"] - 1)
    # The tool came back at once, so it is not expected to take a minute.
    seconds = {lease.seconds for lease in server.engine.scheduler.cache.leases.running()}
    assert seconds == {serving.pauses.expected(b"", ["look"])}
    assert max(seconds) < 60
    reply = told["choices"][0]["message"]
    messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "A door."}]
    chat(server, messages, tools=TOOLS, seed=script.will_say("It is empty."))
    assert leases(server) == [], "nobody is waited for any more"


def test_boundaries_are_kept_as_asked(server: RunningServer) -> None:
    messages = [
        SYSTEM,
        {"role": "user", "content": "asked: " + "x" * 50},
        {"role": "user", "content": "y" * 50},
    ]
    asked = [
        {"messages": 1, "zone": "root", "lease_s": 100, "priority": 3},
        {"messages": 2, "zone": "trunk", "lease_s": 50},
    ]
    chat(server, messages, deeproot={"boundaries": asked})
    first, second = (floor(tokens_of(server, messages[:n])) for n in (1, 2))
    assert leases(server) == [(ROOT, 0, first), (TRUNK, first, second)]
    metrics = server.metrics()
    assert metrics["deeproot_leases"] == 2
    assert metrics['deeproot_cached_pages{class="root"}'] == first // 16
    assert metrics['deeproot_cached_pages{class="trunk"}'] == (second - first) // 16
    before = metrics['deeproot_cache_hit_tokens_total{class="root"}']
    chat(server, messages)
    assert server.metrics()['deeproot_cache_hit_tokens_total{class="root"}'] == before + first
    stats = take_stats(server.engine.scheduler)
    assert stats.counters.cached >= stats.root_hits + stats.trunk_hits + stats.leaf_hits


def test_a_whole_conversation_or_text_may_be_leased(server: RunningServer) -> None:
    told = chat(server, [SYSTEM, {"role": "user", "content": "whole"}], deeproot={"lease_s": 30})
    held = leases(server)
    assert held[-1][0] is LEAF
    assert held[-1][2] == floor(told["usage"]["total_tokens"] - 1)
    body = {
        "prompt": "t" * 100,
        "max_tokens": 1,
        "deeproot": {"boundaries": [{"token": 70, "zone": "trunk", "lease_s": 9}]},
    }
    assert httpx.post(f"{server.url}/v1/completions", json=body).status_code == 200
    assert (TRUNK, 0, 64) in leases(server)


def test_anthropics_marks_set_boundaries(server: RunningServer) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    text = "cache control: " + "z" * 60
    client.messages.create(
        model="tiny",
        max_tokens=4,
        system=[{"type": "text", "text": text, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
            },
            {"role": "assistant", "content": "Yes."},
            {"role": "user", "content": "Go on."},
        ],
    )
    root = floor(tokens_of(server, [{"role": "system", "content": text}]))
    assert [one[0] for one in leases(server)] == [ROOT, TRUNK]
    assert leases(server)[0][2] == leases(server)[1][1] == root
    seconds = {class_of(one.rank): one.seconds for one in server.engine.scheduler.cache.leases.running()}
    assert seconds == {ROOT: 3600.0, TRUNK: 300.0}


@pytest.mark.parametrize("by_header", [False, True])
def test_what_a_session_leaves_is_scratch(server: RunningServer, by_header: bool) -> None:
    name = f"session {by_header}"
    fields: Message = (
        {"headers": {"X-Deeproot-Session": name}} if by_header else {"deeproot": {"session_id": name}}
    )
    order = server.engine.scheduler.cache.order
    messages = [SYSTEM, {"role": "user", "content": f"{name} " + "a" * 100}]
    first = chat(server, messages, **fields)["usage"]["total_tokens"] - 1
    chat(server, [SYSTEM, {"role": "user", "content": f"{name} another session of the same root"}])
    assert order.num_pages(EvictionClass.SCRATCH) == 0
    newest = chat(server, [SYSTEM, {"role": "user", "content": f"{name} compacted"}], **fields)
    kept = newest["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert order.num_pages(EvictionClass.SCRATCH) == -(-first // 16) - kept // 16 > 5


def test_marks_do_not_change_the_prompt(server: RunningServer) -> None:
    part = {"type": "text", "text": "the same prompt"}
    plain = chat(server, [{"role": "user", "content": [part]}])
    marked = chat(server, [{"role": "user", "content": [{**part, "cache_control": {"type": "ephemeral"}}]}])
    assert marked["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert marked["usage"]["prompt_tokens_details"]["cached_tokens"] == plain["usage"]["prompt_tokens"] - 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"deeproot": {"session_id": ""}}, "deeproot.session_id"),
        ({"deeproot": {"lease_s": -1}}, "deeproot.lease_s"),
        ({"deeproot": {"boundaries": [{"zone": "leaf", "lease_s": 1}]}}, "deeproot.boundaries[0]"),
        (
            {"deeproot": {"boundaries": [{"zone": "top", "messages": 1, "lease_s": 1}]}},
            "deeproot.boundaries[0].zone",
        ),
        (
            {"deeproot": {"boundaries": [{"zone": "leaf", "messages": 2, "lease_s": 1}]}},
            "deeproot.boundaries[0].messages",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}],
                    }
                ]
            },
            "messages[0].content[0].cache_control.type",
        ),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, fields: Message, param: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body)
    assert reply.status_code == 400, json.dumps(reply.json())
    assert reply.json()["error"]["param"] == param


def test_two_sessions_in_one_request_are_refused(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "deeproot": {"session_id": "one"}}
    for name, status in (("two", 400), ("one", 200), ("x" * 129, 400)):
        headers = {"X-Deeproot-Session": name}
        reply = httpx.post(
            f"{server.url}/v1/chat/completions", json={**body, "max_tokens": 1}, headers=headers
        )
        assert reply.status_code == status
