"""Explanations through the running server: what the engine did is asked of the engine."""

from typing import Any

import httpx

from .harness import RunningServer

Message = dict[str, Any]
SYSTEM: Message = {
    "role": "system",
    "content": "You help with travel plans. Time: 2026-03-05 10:15. Be brief.",
}
ASK: Message = {"role": "user", "content": "Where shall I go this summer?"}


def ask(server: RunningServer, messages: list[Message], **fields: Any) -> dict[str, Any]:
    """A chat call with an explanation; the whole answer."""
    headers = fields.pop("headers", {})
    own = {"explain": True, **fields.pop("deeproot", {})}
    body = {"messages": messages, "max_tokens": 4, "deeproot": own, **fields}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def explained(answer: dict[str, Any]) -> dict[str, Any]:
    (explanation,) = answer["deeproot"]["explanations"]
    usage = answer["usage"]
    assert explanation["id"] == answer["id"]
    assert explanation["prompt_tokens"] == usage["prompt_tokens"]
    assert explanation["matched_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    missed = sum(miss["tokens"] for miss in explanation["misses"] if miss["cause"] != "preempted")
    assert explanation["matched_tokens"] + missed == explanation["prompt_tokens"] - 1
    found: dict[str, Any] = explanation
    return found


def fresh(text: str) -> Message:
    """A system message that no other test has used."""
    return {"role": "system", "content": f"{text}: {SYSTEM['content']}"}


def evict_all(server: RunningServer) -> None:
    scheduler = server.engine.scheduler
    server.wait_idle()
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))


def test_first_seen_then_evicted(server: RunningServer) -> None:
    messages = [fresh("evicted"), ASK]
    first = explained(ask(server, messages))
    assert first["cause"] == "first_seen"
    second = explained(ask(server, messages))
    assert second["cause"] is None
    assert second["misses"] == []
    evict_all(server)
    third = explained(ask(server, messages))
    assert third["cause"] == "evicted"
    assert third["ceiling_tokens"] == third["prompt_tokens"] - 1
    assert third["misses"] == [{"cause": "evicted", "tokens": third["prompt_tokens"] - 1}]
    other = explained(ask(server, [fresh("never"), ASK]))
    assert other["cause"] in ("evicted", "first_seen")
