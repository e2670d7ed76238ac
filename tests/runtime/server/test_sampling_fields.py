"""What clients may ask of sampling and get back about it, through the real server."""

import itertools
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.server.logprob_forms import TextForm, chat_logprobs, joined, token_name
from deeproot.scheduler.messages import TokenLogprobs

from .harness import RunningServer, ScriptedForward, chat_body

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ODD = "Grüße, 世界 🌍!"


@pytest.fixture
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def post(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(server.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def stream(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a stream, usage included."""
    body = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text = httpx.post(server.url + path, json=body, timeout=60).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("stop", [None, "🌍"])
def test_chat_logprobs_whole_and_streamed(
    server: RunningServer, client: openai.OpenAI, script: ScriptedForward, stop: str | None
) -> None:
    """One token a byte: joined bytes are the text, though most of its characters span tokens."""

    def body() -> dict[str, Any]:
        fields = {"logprobs": True, "top_logprobs": 3, "seed": script.will_say(ODD)}
        return chat_body("x", **fields, **({"stop": stop} if stop else {}))

    whole = post(server, CHAT, body())
    entries = whole["choices"][0]["logprobs"]["content"]
    text = whole["choices"][0]["message"]["content"]
    assert text == (ODD if stop is None else "Grüße, 世界 ")
    said = bytes(byte for entry in entries for byte in entry["bytes"]).decode()
    assert said == (ODD if stop is None else "Grüße, 世界 🌍")
    for entry in entries:
        assert len(entry["top_logprobs"]) == 3
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert entry["logprob"] <= values[0] < 0
    # With the end token, which is no part of the text.
    assert len(entries) == whole["usage"]["completion_tokens"] - (stop is None)
    chunks = stream(server, CHAT, body())
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    assert [entry["bytes"] for entry in streamed] == [entry["bytes"] for entry in entries]
    # The scripted token is another than the one that was sampled, the logits are the same.
    tops = [[top["bytes"] for top in entry["top_logprobs"]] for entry in entries]
    assert [[top["bytes"] for top in entry["top_logprobs"]] for entry in streamed] == tops
    typed = client.chat.completions.create(model="tiny", **body())
    assert typed.choices[0].logprobs is not None
    assert typed.choices[0].logprobs.content is not None
    assert typed.choices[0].logprobs.content[0].bytes == list(b"G")


def test_logprobs_without_alternatives(server: RunningServer) -> None:
    answer = post(server, CHAT, chat_body("x", logprobs=True, max_tokens=3))
    assert [entry["top_logprobs"] for entry in answer["choices"][0]["logprobs"]["content"]] == [[], [], []]
    answer = post(server, CHAT, chat_body("x", max_tokens=3))
    assert answer["choices"][0]["logprobs"] is None


def test_echo_scores_what_was_generated(server: RunningServer, client: openai.OpenAI) -> None:
    """The logarithms of a completion are those of the same tokens read as a prompt."""
    ids = [11, 200, 150, 33, 90]
    fields = {"prompt": ids, "max_tokens": 12, "seed": 4, "logprobs": 4, "echo": True, "ignore_eos": True}
    answer = post(server, TEXT, fields)
    found = answer["choices"][0]["logprobs"]
    lengths = {len(values) for values in found.values()}
    assert lengths == {17}
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert answer["usage"]["prompt_tokens"] == 5
    assert answer["usage"]["completion_tokens"] == 12
    all_ids = [id_of(name, server) for name in found["tokens"]]
    assert all_ids[:5] == ids
    scored = post(server, TEXT, {"prompt": all_ids, "max_tokens": 0, "logprobs": 4, "echo": True})
    again = scored["choices"][0]["logprobs"]
    assert again["tokens"] == found["tokens"]
    assert again["text_offset"] == found["text_offset"]
    np.testing.assert_allclose(again["token_logprobs"][1:], found["token_logprobs"][1:], atol=1e-4)
    assert scored["choices"][0]["finish_reason"] == "length"
    assert scored["choices"][0]["text"] == answer["choices"][0]["text"]
    assert scored["usage"]["completion_tokens"] == 0
    chunks = stream(server, TEXT, fields)
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == answer["choices"][0]["text"]
    parts = [c["choices"][0]["logprobs"] for c in chunks[:-1] if c["choices"][0]["logprobs"]]
    for name in ("tokens", "text_offset"):
        assert [value for part in parts for value in part[name]] == found[name]
    typed = client.completions.create(model="tiny", prompt="abc", echo=True, logprobs=1, max_tokens=1)
    assert typed.choices[0].text.startswith("abc")
    assert typed.choices[0].logprobs is not None
    assert typed.choices[0].logprobs.text_offset == [0, 1, 2, 3]


def id_of(name: str, server: RunningServer) -> int:
    tokenizer = server.engine.speech.assets.tokenizer
    return [token_name(i, tokenizer) for i in range(tokenizer.vocab_size)].index(name)


def test_long_prompts_are_scored_in_chunks(server: RunningServer) -> None:
    """Longer than a step computes; and again, when all of it is in the cache."""
    text = "abcdefghij" * 60
    answers = [
        post(server, TEXT, {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}) for _ in range(2)
    ]
    for answer in answers:
        values = answer["choices"][0]["logprobs"]["token_logprobs"]
        assert len(values) == 600
        assert all(value < 0 for value in values[1:])
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        np.testing.assert_allclose(
            values[1:], answers[0]["choices"][0]["logprobs"]["token_logprobs"][1:], atol=1e-5
        )


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_n_answers_share_a_prompt(server: RunningServer, path: str) -> None:
    """Each is what its seed gives alone; the prompt is computed and counted once."""
    prompt = f"{path} once upon a time " * 10
    start = chat_body(prompt) if path == CHAT else {"prompt": prompt}
    body = {**start, "max_tokens": 9, "temperature": 1.3, "ignore_eos": True}

    def texts(answer: dict[str, Any]) -> list[str]:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        return [c["message"]["content"] if path == CHAT else c["text"] for c in choices]

    before = server.metrics()
    three = post(server, path, {**body, "n": 3, "seed": 70})
    server.wait_idle()
    after = server.metrics()
    usage = three["usage"]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert usage["completion_tokens"] == 27
    assert usage["total_tokens"] == usage["prompt_tokens"] + 27
    computed = after["deeproot_computed_tokens_total"] - before["deeproot_computed_tokens_total"]
    # Whole pages of 16 are shared as soon as they are computed, the rest of a page is computed by each.
    assert computed - usage["prompt_tokens"] <= 2 * 16
    alone = [post(server, path, {**body, "seed": 70 + i}) for i in range(3)]
    assert texts(three) == [texts(answer)[0] for answer in alone]
    assert alone[0]["usage"]["prompt_tokens"] == usage["prompt_tokens"]
    chunks = stream(server, path, {**body, "n": 3, "seed": 70})
    streamed = ["", "", ""]
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        text = choice["delta"].get("content") if path == CHAT else choice["text"]
        streamed[choice["index"]] += text or ""
    assert streamed == texts(three)
    last = chunks[-1]["usage"]
    assert (last["prompt_tokens"], last["completion_tokens"]) == (usage["prompt_tokens"], 27)


def test_several_prompts_with_several_answers(server: RunningServer) -> None:
    answer = post(
        server, TEXT, {"prompt": ["abc", "defgh"], "n": 2, "max_tokens": 3, "ignore_eos": True, "echo": True}
    )
    assert [choice["text"][:3] for choice in answer["choices"]] == ["abc", "abc", "def", "def"]
    assert answer["usage"]["prompt_tokens"] == 8
    assert answer["usage"]["completion_tokens"] == 12


def test_usage_with_stop_strings_and_n(server: RunningServer, script: ScriptedForward) -> None:
    """Tokens behind the end of the text do not count, though the engine had gone on."""
    seed = script.will_say("one two stop three four")
    answer = post(server, CHAT, chat_body("x", seed=seed, stop="stop"))
    assert answer["choices"][0]["message"]["content"] == "one two "
    assert answer["usage"]["completion_tokens"] == len("one two stop")
    server.wait_idle()


def test_biases_and_penalties_reach_the_model(server: RunningServer) -> None:
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 12, "ignore_eos": True, "logprobs": 0}

    def tokens(**fields: Any) -> list[str]:
        return list(post(server, TEXT, {**body, **fields})["choices"][0]["logprobs"]["tokens"])

    plain = tokens()
    favourite = id_of("q", server)
    assert tokens(logit_bias={str(favourite): 100}) == ["q"] * 12
    banned = id_of(plain[0], server)
    assert plain[0] not in tokens(logit_bias={str(banned): -100})
    assert len(set(tokens(presence_penalty=2, frequency_penalty=2, logit_bias={str(favourite): 3}))) > 1


def test_min_tokens_holds_back_every_end(server: RunningServer, script: ScriptedForward) -> None:
    end = server.engine.speech.assets.tokenizer.id_of("<|im_end|>")
    body = chat_body("x", temperature=0, max_tokens=20, logit_bias={str(end): 100})
    assert post(server, CHAT, body)["usage"]["completion_tokens"] == 1
    answer = post(server, CHAT, {**body, "min_tokens": 7})
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "stop"
    for min_tokens, text in ((0, ""), (5, "stop ")):
        seed = script.will_say("stop stop stop")
        answer = post(server, CHAT, chat_body("x", seed=seed, stop="stop", min_tokens=min_tokens))
        assert answer["choices"][0]["message"]["content"] == text


def test_a_final_message_is_gone_on_with(server: RunningServer, script: ScriptedForward) -> None:
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two, "}]
    answer = post(
        server, CHAT, {"messages": turns, "continue_final_message": True, "seed": script.will_say("three")}
    )
    assert answer["choices"][0]["message"]["content"] == "three"
    prompt = "<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\nOne, two, "
    assert answer["usage"]["prompt_tokens"] == prompt_tokens(server, prompt)
    calls = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]
    refused = httpx.post(server.url + CHAT, json={"messages": calls, "continue_final_message": True})
    assert refused.status_code == 400
    assert "tool calls" in refused.json()["error"]["message"]


def prompt_tokens(server: RunningServer, text: str) -> int:
    return len(server.engine.speech.assets.tokenizer.encode(text, parse_special=True))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=12), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_offsets_are_places_in_the_text(byte_tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    """In whatever pieces the tokens come: a token's offset is the number of whole characters before it."""
    ids = byte_tokenizer.encode(text, parse_special=False).tolist()
    entries = [TokenLogprobs(i, -1.0, ((i, -1.0), (5, -2.0))) for i in ids]
    form = TextForm.start(byte_tokenizer, with_prompt=False)
    places = sorted({0, *(cut for cut in cuts if cut < len(ids)), len(ids)})
    parts = [form.more(entries[a:b]) for a, b in itertools.pairwise(places)]
    if not parts:
        return
    found = joined(parts)
    pieces = [byte_tokenizer.pieces[i] for i in ids]
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    for i, offset in enumerate(found.text_offset):
        before = b"".join(pieces[:i])
        assert clean[:offset].encode() == before[: len(clean[:offset].encode())]
        assert len(before) - len(clean[:offset].encode()) < 4
    content = chat_logprobs(entries, byte_tokenizer).content
    assert bytes(b for entry in content for b in entry.bytes) == clean.encode()
    assert len({token_name(i, byte_tokenizer) for i in range(256)}) == 256


@pytest.fixture
def byte_tokenizer(server: RunningServer) -> Tokenizer:
    return server.engine.speech.assets.tokenizer
