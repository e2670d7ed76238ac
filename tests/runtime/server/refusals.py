"""Requests that are refused, and the error in the answer."""

from typing import Any

import httpx

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def messages(*items: object) -> dict[str, object]:
    return {"messages": list(items)}


def the_error(response: httpx.Response) -> dict[str, Any]:
    """The error in an answer, which must have OpenAI's form."""
    assert response.status_code >= 400
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error
