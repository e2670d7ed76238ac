"""`/v1/cache`: what it says of a prompt is what the prompt then costs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from deeproot.runtime.cache_client import CacheClient, CacheError
from deeproot.runtime.cache_price import EngineOracle, Tariff
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import RunningServer, SlowForward, running_server, wait_until

KEYS = {"a": {"Authorization": "Bearer key-a"}, "b": {"Authorization": "Bearer key-b"}}


@pytest.fixture(scope="module")
def guarded(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    """A server with two tenants and a price."""
    options = ServerOptions(port=0, api_keys=("key-a", "key-b"), dollars_per_hour=2.0)
    with running_server(tiny_options, options) as running:
        yield running


def post(server: RunningServer, path: str, who: str = "a", **body: Any) -> dict[str, Any]:
    reply = httpx.post(f"{server.url}{path}", json=body, headers=KEYS[who], timeout=60)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told


def probe(server: RunningServer, who: str = "a", salt: str | None = None, **source: Any) -> dict[str, Any]:
    fields = {} if salt is None else {"cache_salt": salt}
    (one,) = post(server, "/v1/cache/probe", who, prompts=[source], **fields)["prompts"]
    told: dict[str, Any] = one
    return told


def test_a_conversation_is_probed_as_it_is_then_computed(guarded: RunningServer) -> None:
    messages = [{"role": "user", "content": "probe: Where to go?"}]
    before = probe(guarded, messages=messages)
    first = post(guarded, "/v1/chat/completions", messages=messages, max_tokens=4)
    assert before["prompt_tokens"] == first["usage"]["prompt_tokens"]
    assert before["cached_tokens"] == first["usage"]["prompt_tokens_details"]["cached_tokens"]
    messages = [*messages, {"role": "user", "content": "And why?"}]
    told = probe(guarded, messages=messages)
    assert told["cached_tokens"] == told["diverges_at"] > 16
    usage = post(guarded, "/v1/chat/completions", messages=messages, max_tokens=1)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == told["cached_tokens"]
    again = probe(guarded, messages=messages)
    assert (again["cached_tokens"], again["diverges_at"]) == (again["prompt_tokens"], None)


def test_nobody_learns_of_anothers_cache(guarded: RunningServer) -> None:
    text = "isolation: a text that only one tenant has sent"
    post(guarded, "/v1/completions", prompt=text, max_tokens=1)
    assert probe(guarded, prompt=text)["cached_tokens"] == len(text)
    assert probe(guarded, "b", prompt=text)["cached_tokens"] == 0
    assert probe(guarded, "a", "salt", prompt=text)["cached_tokens"] == 0
    priced = post(guarded, "/v1/cache/price", "b", old={"prompt": text}, new={"prompt": text})
    assert priced["tokens_recomputed"] == len(text)


def test_the_price_of_an_edit(guarded: RunningServer) -> None:
    old = [*range(100, 200)]
    post(guarded, "/v1/completions", prompt=old, max_tokens=1)
    new = old[:40] + old[50:]
    told = post(guarded, "/v1/cache/price", old={"token_ids": old}, new={"token_ids": new})
    assert told["tokens_recomputed"] == told["new"]["cost"]["tokens_recomputed"] == 50
    assert told["old"]["cost"]["tokens_recomputed"] == 1, "the last token is computed for its logits"
    assert told["extra_tokens"] == 49
    assert told["tokens_per_second"] > 0
    assert told["seconds"] == pytest.approx(50 / told["tokens_per_second"])
    assert told["dollars"] == pytest.approx(told["seconds"] * 2.0 / 3600)
    by_token = post(
        guarded, "/v1/cache/price", old={"token_ids": old}, new={"token_ids": new}, dollars_per_million=3.0
    )
    assert by_token["dollars"] == pytest.approx(50 * 3.0 / 1e6)


def test_the_python_client_says_the_same(guarded: RunningServer) -> None:
    text = "client: some text to find again"
    post(guarded, "/v1/completions", prompt=text, max_tokens=1, cache_salt="s")
    messages = [{"role": "user", "content": "client: unseen"}]
    with CacheClient(f"{guarded.url}/v1", api_key="key-a", cache_salt="s") as cache:
        probed = cache.probe([text, messages, list(text.encode()), np.arange(5, dtype=np.int32)])
        assert probed.cached_tokens == (len(text), 0, 0, 0)
        assert probed.prompt_tokens[0] == len(text)
        told = cache.price(text, text + " and more", dollars_per_million=1.0)
        assert told["tokens_recomputed"] == len(" and more")
        oracle = EngineOracle(cache, Tariff(dollars_per_million=1.0))
        ids = np.asarray([257, 1, 2], dtype=np.int32)
        cost = oracle.price(ids, ids)
        assert (cost.tokens_recomputed, cost.dollars) == (3, pytest.approx(3e-6))
        with pytest.raises(CacheError, match=r"prompts\[1\]\.token_ids holds 999999"):
            cache.probe([text, [999_999]])
    with CacheClient(guarded.url, api_key="wrong") as stranger, pytest.raises(CacheError, match="API key"):
        stranger.probe([text])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("probe", {}, "prompts"),
        ("probe", {"prompts": []}, "prompts"),
        ("probe", {"prompts": [{}]}, "prompts[0].prompt"),
        ("probe", {"prompts": [{"prompt": "a"}, {"prompt": "a", "token_ids": [1]}]}, "prompts[1].token_ids"),
        ("probe", {"prompts": [{"token_ids": [-1]}]}, "prompts[0].token_ids"),
        ("probe", {"prompts": [{"messages": [{"role": "x", "content": ""}]}]}, "prompts[0].messages[0].role"),
        ("probe", {"prompts": [{"prompt": "a"}], "cache_salt": ""}, "cache_salt"),
        ("price", {"old": {"prompt": "a"}}, "new"),
        ("price", {"old": {"prompt": "a"}, "new": {}}, "new.prompt"),
        ("warm", {}, "prompt"),
        ("warm", {"prompt": "a" * 5000}, "prompt"),
        ("warm", {"prompt": "a", "wait": 1}, "wait"),
        (
            "price",
            {"old": {"prompt": "a"}, "new": {"prompt": "b"}, "dollars_per_million": -1},
            "dollars_per_million",
        ),
    ],
)
def test_what_is_wrong_is_named(guarded: RunningServer, path: str, body: Any, param: str) -> None:
    reply = httpx.post(f"{guarded.url}/v1/cache/{path}", json=body, headers=KEYS["a"])
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert reply.json()["error"]["message"]


def test_in_one_process(tiny_model: Path) -> None:
    with LLM(
        tiny_model,
        load_format="dummy",
        dtype="float32",
        device="cpu",
        page_size=16,
        kv_cache_memory_bytes=2**20,
    ) as llm:
        text = "in process: " * 5
        assert llm.probe([text, [1, 2, 3]]).cached_tokens == (0, 0)
        (done,) = llm.generate(text)
        kept = llm.probe([text, text[:30], "x"])
        assert kept.cached_tokens == (len(text), 30, 0)
        assert kept.prompt_tokens == (len(text), 30, 1)
        old, new = llm.price(text, "x" + text, Tariff(dollars_per_million=2.0))
        assert (old.tokens_recomputed, new.tokens_recomputed) == (1, len(text) + 1)
        assert new.dollars == pytest.approx((len(text) + 1) * 2e-6)
        messages = [{"role": "user", "content": "Hello"}]
        usage = llm.chat(messages).usage
        ids = llm.chat_tokens(messages)
        assert len(ids) == usage.prompt
        assert llm.probe([ids]).cached_tokens == (len(ids),)
        assert EngineOracle(llm).price(ids, ids).tokens_recomputed == 1
    assert done.usage.cached == 0


def test_what_was_warmed_is_cached_and_kept(guarded: RunningServer) -> None:
    text = "warm: " + "abcdefgh " * 80  # several pieces
    with CacheClient(guarded.url, api_key="key-a", cache_salt="warm") as cache:
        told = cache.warm(text, lease_s=20, wait=True)
        assert told["cached_tokens"] == told["prompt_tokens"] == len(text)
        (lease,) = guarded.engine.scheduler.cache.leases.running()
        assert lease.node is not None
        assert (lease.start, lease.node.end // 4) == (0, len(text) // 16 * 16)
        again = cache.warm(text, lease_s=20, wait=True)
        assert again["cached_tokens"] == len(text)
        assert len(guarded.engine.scheduler.cache.leases) == 1
    body = {"prompt": text, "max_tokens": 1}
    for salt, cached in (("warm", len(text) - 1), ("other", 0)):
        usage = post(guarded, "/v1/completions", **body, cache_salt=salt)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == cached
    guarded.wait_idle()


def test_warming_waits_for_others_and_for_nobody_waits_it(tiny_options: EngineOptions) -> None:
    forward = []

    def slowed(engine: LoadedEngine) -> SlowForward:
        forward.append(SlowForward(engine.scheduler.runner, 0.02))
        return forward[0]

    with running_server(tiny_options, wrap=slowed) as server:
        serving = server.state.serving
        assert serving is not None
        with ThreadPoolExecutor(2) as pool, CacheClient(server.url) as cache:
            body = {"prompt": "long answer", "max_tokens": 40, "ignore_eos": True}
            answer = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
            wait_until(lambda: serving.client.num_inflight > 0)
            text = "warm beside others " * 60
            assert cache.warm(text)["cached_tokens"] == 0, "it answers at once"
            assert not answer.done()
            assert len(serving.warmings) == 1
            assert answer.result().status_code == 200
            wait_until(lambda: not serving.warmings)
            assert cache.probe([text]).cached_tokens == (len(text),)
        server.wait_idle()
