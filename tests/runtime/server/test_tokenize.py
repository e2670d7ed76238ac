"""What /tokenize says is what a completion computes."""

from typing import Any

import httpx
import pytest

from .harness import RunningServer, chat_body


def post(server: RunningServer, path: str, **body: Any) -> Any:
    reply = httpx.post(f"{server.url}{path}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_conversation_as_it_is_computed(server: RunningServer) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for fields in ({}, {"tools": [tool]}):
        said = post(server, "/tokenize", **chat_body("Hello é", **fields))
        usage = post(server, "/v1/chat/completions", **chat_body("Hello é", **fields, max_tokens=1))["usage"]
        assert said["count"] == len(said["tokens"]) == usage["prompt_tokens"]
        assert said["token_strs"] is None
    opened = post(server, "/tokenize", **chat_body("Hello é"))["tokens"]
    plain = post(server, "/tokenize", **chat_body("Hello é", add_generation_prompt=False))["tokens"]
    assert opened[: len(plain)] == plain
    assert len(opened) > len(plain)


def test_a_prompt_as_it_is_computed_and_back(server: RunningServer) -> None:
    text = "a <|im_end|> é"
    said = post(server, "/tokenize", prompt=text, return_token_strs=True)
    usage = post(server, "/v1/completions", prompt=text, max_tokens=1)["usage"]
    assert said["count"] == usage["prompt_tokens"]
    assert "<|im_end|>" in said["token_strs"]
    assert said["max_model_len"] > 0
    assert post(server, "/detokenize", tokens=said["tokens"]) == {"prompt": text}
    bare = post(server, "/tokenize", prompt=text, add_special_tokens=False)
    assert post(server, "/detokenize", tokens=bare["tokens"]) == {"prompt": text}
    assert post(server, "/tokenize", prompt="") == {**said, "count": 0, "tokens": [], "token_strs": None}
    assert post(server, "/detokenize", tokens=[]) == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": 1}, "prompt"),
        ("/tokenize", {"messages": [{"role": "nobody", "content": "a"}]}, "messages[0].role"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
def test_what_is_wrong_is_named(server: RunningServer, path: str, body: Any, param: str) -> None:
    reply = httpx.post(f"{server.url}{path}", json=body)
    assert reply.status_code == (404 if param == "model" else 400)
    assert reply.json()["error"]["param"] == param
