"""Chat calls that ask for an explanation."""

import random
from typing import Any

import httpx

Message = dict[str, Any]
ASK: Message = {"role": "user", "content": "Where shall I go this summer?"}


def ask(url: str, messages: list[Message], **fields: Any) -> dict[str, Any]:
    """A chat call with an explanation; the whole answer."""
    headers = fields.pop("headers", {})
    own = {"explain": True, **fields.pop("deeproot", {})}
    body = {"messages": messages, "max_tokens": 4, "deeproot": own, **fields}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=60)
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


def fresh(name: str) -> Message:
    """A system message that no other test has used."""
    rng = random.Random(name)
    return {"role": "system", "content": "".join(rng.choices("abcdefghij klmno", k=80))}
