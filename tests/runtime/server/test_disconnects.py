"""Clients that leave, one by one and in a crowd: nothing of their requests may stay."""

import asyncio
import dataclasses
import json
import logging
import random
import re
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest

from deeproot.runtime.http_api import lines_of
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.invariants import check_idle

from .harness import RunningServer, SlowForward, chat_body, running_server, tokens_accounted

_END = r"(?P<rid>\S+): (?P<reason>\w+), prompt (?P<prompt>\d+) \(cached (?P<cached>\d+)\), output (?P<output>\d+)"
ENDLESS = {"max_tokens": 700, "ignore_eos": True}


@pytest.fixture(scope="module")
def slow(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    """Each step takes a tenth of a second."""
    with running_server(
        tiny_options, wrap=lambda engine: SlowForward(engine.scheduler.runner, seconds=0.1)
    ) as running:
        yield running


def steps_until_idle(server: RunningServer) -> int:
    before = server.engine.scheduler.counters.steps
    server.wait_idle(5.0)
    return server.engine.scheduler.counters.steps - before


def test_leaving_a_stream_ends_its_request(slow: RunningServer) -> None:
    with (
        httpx.Client(base_url=slow.url) as client,
        client.stream(
            "POST", "/v1/chat/completions", json=chat_body("hi", stream=True, **ENDLESS)
        ) as response,
    ):
        assert response.status_code == 200
        lines = lines_of(response.iter_bytes())
        assert next(lines).startswith("data: ")
        assert slow.metrics()["deeproot_requests_running"] == 1
    # The step in flight, and one that may have begun before the news of it came through.
    assert steps_until_idle(slow) <= 3
    aborted = slow.metrics()['deeproot_requests_total{endpoint="chat",finish_reason="abort"}']
    assert aborted == 1


def test_the_log_says_what_those_cost_who_have_left(
    slow: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for each of three choices: their prompt is the same, and the later two found it cached."""
    caplog.set_level(logging.INFO, logger="deeproot.runtime.server.startup")
    body = chat_body("What is it that you have cost?", stream=True, n=3, **ENDLESS)
    with (
        httpx.Client(base_url=slow.url) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as response,
    ):
        heard: set[int] = set()
        for line in lines_of(response.iter_bytes()):
            if line.startswith("data: "):
                chunk = json.loads(line.removeprefix("data: "))
                heard |= {c["index"] for c in chunk["choices"] if c["delta"].get("content")}
            if heard == {0, 1, 2}:
                break
    slow.wait_idle(5.0)
    lines = [re.fullmatch(_END, record.getMessage()) for record in caplog.records]
    ends = [found for found in lines if found is not None]
    assert [found["reason"] for found in ends] == ["abort"] * 3
    assert len({found["rid"] for found in ends}) == 3
    (num_prompt,) = {int(found["prompt"]) for found in ends}
    with_one = httpx.post(f"{slow.url}/v1/chat/completions", json={**body, "stream": False, "max_tokens": 1})
    assert num_prompt == with_one.json()["usage"]["prompt_tokens"]
    cached = sorted(int(found["cached"]) for found in ends)
    assert cached[0] < cached[1] == cached[2] == num_prompt - 1
    assert all(1 <= int(found["output"]) < 700 for found in ends)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_answer_begins_ends_the_request(
    slow: RunningServer, path: str, stream: bool
) -> None:
    body = chat_body("hi", **ENDLESS) if "chat" in path else {"prompt": ["a", "b"], **ENDLESS}
    # Longer than a step's budget, so that a stream has said nothing yet when the client leaves.
    if stream:
        body = chat_body("long " * 250, **ENDLESS) if "chat" in path else {"prompt": "long " * 250, **ENDLESS}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{slow.url}{path}", json={**body, "stream": stream}, timeout=0.4)
    assert steps_until_idle(slow) <= 3


def test_leaving_while_waiting_in_the_queue(slow: RunningServer) -> None:
    async def crowd() -> None:
        async with httpx.AsyncClient(base_url=slow.url, timeout=0.6) as client:
            asked = [
                client.post("/v1/chat/completions", json=chat_body(f"{i}", **ENDLESS)) for i in range(20)
            ]
            results = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(result) for result in results} == {httpx.ReadTimeout}

    asyncio.run(crowd())
    assert steps_until_idle(slow) <= 3


def test_a_crowd_of_clients_that_stay_cancel_and_vanish(tiny_options: EngineOptions) -> None:
    """200 requests, 16 at a time, on so few pages that some are preempted: each is accounted for."""
    small = {"kv_cache_memory_bytes": 320 * 2**10, "max_model_len": 1024, "reserve_output_tokens": 1}
    options = dataclasses.replace(tiny_options, **small)
    with running_server(options) as server:
        pool = server.engine.scheduler.pool
        outcomes = asyncio.run(run_crowd(server.url))
        server.wait_idle()
        assert sum(outcomes.values()) == 200
        assert set(outcomes) == {"whole", "streamed", "left", "cancelled"}
        metrics = server.metrics()
        ended = {name: n for name, n in metrics.items() if name.startswith("deeproot_requests_total")}
        # Of those that cancel, some leave before the server has read what they want.
        arrived = sum(ended.values())
        assert 200 - outcomes["cancelled"] <= arrived <= 200
        completed = arrived - ended['deeproot_requests_total{endpoint="chat",finish_reason="abort"}']
        assert completed >= outcomes["whole"] + outcomes["streamed"]
        assert metrics["deeproot_request_duration_seconds_count"] == arrived
        assert metrics['deeproot_pages{state="private"}'] == 0
        assert metrics["deeproot_pages_locked"] == 0
        assert metrics["deeproot_preemptions_total"] > 0
        # With the cache emptied, every page is back.
        pool.free(server.engine.scheduler.cache.evict(pool.num_pages))
        assert pool.num_free == pool.num_pages
        check_idle(server.engine.scheduler)


def test_accounts_add_up_when_everybody_stays(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options) as server:
        prompts = ["x" * n for n in range(1, 40)]
        body = {"prompt": prompts, "max_tokens": 4, "ignore_eos": True}
        usage = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["usage"]
        metrics = server.metrics()
        assert metrics["deeproot_prompt_tokens_total"] == usage["prompt_tokens"] == sum(range(1, 40))
        assert metrics["deeproot_output_tokens_total"] == usage["completion_tokens"] == 4 * 39
        assert metrics["deeproot_cached_tokens_total"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert tokens_accounted(metrics)
        assert metrics["deeproot_time_to_first_token_seconds_count"] == 39
        assert metrics["deeproot_inter_token_latency_seconds_count"] == 3 * 39
        assert metrics["deeproot_request_duration_seconds_count"] == 39


async def run_crowd(url: str) -> Counter[str]:
    rng = random.Random(5)
    gate = asyncio.Semaphore(16)
    shared = "A prompt that many begin with. " * 8

    async def one(index: int) -> str:
        prompt = shared[: rng.randrange(1, len(shared))] + "".join(
            rng.choices("abc ", k=rng.randrange(1, 300))
        )
        body = chat_body(prompt, max_tokens=rng.randrange(1, 120), seed=index, ignore_eos=rng.random() < 0.5)
        kind = rng.choice(["whole", "streamed", "left", "cancelled"])
        leaves_after_s, leaves_after_lines = rng.uniform(0.005, 0.3), rng.randrange(1, 6)
        async with gate, httpx.AsyncClient(base_url=url, timeout=60, verify=False) as client:
            if kind == "streamed":
                return await read_stream(client, body)
            if kind == "left":
                return await leave_stream(client, body, leaves_after_lines)
            asked = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            if kind == "cancelled":
                await asyncio.sleep(leaves_after_s)
                asked.cancel()
                await asyncio.gather(asked, return_exceptions=True)
                return kind
            response = await asked
            assert response.status_code == 200
            assert response.json()["choices"][0]["finish_reason"] in ("stop", "length")
            return kind

    return Counter(await asyncio.gather(*map(one, range(200))))


async def read_stream(client: httpx.AsyncClient, body: dict[str, object]) -> str:
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200
        lines = lines_of([await response.aread()])
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] in ("stop", "length")
    return "streamed"


async def leave_stream(client: httpx.AsyncClient, body: dict[str, object], after_lines: int) -> str:
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        async for _ in response.aiter_lines():
            after_lines -= 1
            if not after_lines:
                break
    return "left"
