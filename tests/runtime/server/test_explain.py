"""Explanations through the running server: what the engine did is asked of the engine."""

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deeproot.runtime.http_api import lines_of
from deeproot.runtime.options import EngineOptions, ServerOptions

from ..tiny_model import write_tiny_model
from .explaining import ASK, ask, explained, fresh
from .harness import RunningServer, SlowForward, parse_metrics, running_server, wait_until
from .process import run_command, serve
from .test_two_processes import engine_of


def evict_all(server: RunningServer) -> None:
    scheduler = server.engine.scheduler
    server.wait_idle()
    scheduler.pool.free(scheduler.cache.evict(scheduler.cache.num_pages))


def test_first_seen_evicted_and_never_seen(server: RunningServer) -> None:
    messages = [fresh("evicted"), ASK]
    first = explained(ask(server.url, messages))
    assert first["cause"] == "first_seen"
    second = explained(ask(server.url, messages))
    assert (second["cause"], second["misses"], second["divergence"]) == (None, [], None)
    evict_all(server)
    third = explained(ask(server.url, messages))
    assert third["misses"] == [{"cause": "evicted", "tokens": third["prompt_tokens"] - 1}]
    assert third["ceiling_tokens"] == third["prompt_tokens"] - 1
    evict_all(server)
    other = explained(ask(server.url, [fresh("never"), ASK]))
    # Gone is what all prompts start with; what comes after it was never here.
    assert [miss["cause"] for miss in other["misses"]] == ["evicted", "first_seen"]
    assert other["misses"][0]["tokens"] < len("<|im_start|>system\n") + 4


def test_what_was_computed_for_a_client_that_left_is_known(server: RunningServer) -> None:
    messages = [fresh("leaves"), ASK]
    body = {"messages": messages, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        next(lines_of(response.iter_bytes()))
    evict_all(server)
    assert explained(ask(server.url, messages))["cause"] == "evicted"


@pytest.mark.parametrize("include_usage", [True, False])
def test_the_last_chunk_of_a_stream_carries_it(server: RunningServer, include_usage: bool) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    messages: Any = [fresh(f"stream {include_usage}"), ASK]
    options: Any = {"stream_options": {"include_usage": True}} if include_usage else {}
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=4,
            stream=True,
            extra_body={"deeproot": {"explain": True}},
            **options,
        )
    )
    carrying = [chunk for chunk in chunks if chunk.to_dict().get("deeproot")]
    assert carrying == [chunks[-1]]
    last: Any = chunks[-1].to_dict()
    assert last["choices"] == []
    assert (last.get("usage") is not None) is include_usage
    assert last["deeproot"]["explanations"][0]["misses"][-1]["cause"] == "first_seen"


def test_nothing_is_said_to_those_who_do_not_ask(server: RunningServer) -> None:
    for own in ({}, {"explain": False}, None):
        body = {"messages": [ASK], "max_tokens": 2, "deeproot": own}
        whole = httpx.post(f"{server.url}/v1/chat/completions", json=body).json()
        assert "deeproot" not in whole
        streamed = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "stream": True}).text
        assert "deeproot" not in streamed


@pytest.mark.parametrize(
    ("value", "status", "says"), [("1", 200, True), ("0", 200, False), ("perhaps", 400, False)]
)
def test_the_header(server: RunningServer, value: str, status: int, says: bool) -> None:
    body = {"messages": [ASK], "max_tokens": 2}
    headers = {"X-Deeproot-Explain": value}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == status
    assert ("deeproot" in answer.json()) is says
    if status == 400:
        assert answer.json()["error"]["param"] == "X-Deeproot-Explain"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"deeproot": {"explain": "yes"}}, "deeproot.explain"),
        ({"deeproot": {"since": 1}}, "deeproot.since"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": 7}, "cache_salt"),
    ],
)
def test_fields_of_a_wrong_type_are_named(server: RunningServer, fields: dict[str, Any], name: str) -> None:
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [ASK], **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == name


def test_completions_have_one_for_each_prompt(server: RunningServer) -> None:
    text = "At 10:15:00 the train leaves from Rome to Paris, and takes its time."
    body = {"max_tokens": 2, "deeproot": {"explain": True}}
    answers = [
        httpx.post(f"{server.url}/v1/completions", json={"prompt": [prompt, "Once"], **body}).json()
        for prompt in (text, text.replace("10:15", "10:16"))
    ]
    first, second = [answer["deeproot"]["explanations"] for answer in answers]
    assert [one["id"] for one in first] == [f"{answers[0]['id']}-{i}" for i in range(2)]
    assert [one["cause"] for one in second] == ["changed_time", None]
    assert second[0]["divergence"]["segment"] == "prompt"


def test_preempted_requests_say_so(tiny_options: EngineOptions) -> None:
    """Three that grow in a pool for two; what a preempted one computes again is not what was evicted before it came."""
    small = replace(
        tiny_options, kv_cache_memory_bytes=26 * 16 * 256 * 2, max_model_len=400, reserve_output_tokens=1
    )
    with running_server(small, wrap=lambda engine: SlowForward(engine.scheduler.runner, 0.005)) as server:
        answers: list[dict[str, Any]] = []
        threads = [
            threading.Thread(
                target=lambda i=i: answers.append(
                    ask(server.url, [fresh(f"preempt {i}")], max_tokens=150, ignore_eos=True)
                )
            )
            for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert server.metrics()["deeproot_preemptions_total"] > 0
        found = [explained(answer) for answer in answers]
        said = [miss["tokens"] for one in found for miss in one["misses"] if miss["cause"] == "preempted"]
        recomputed = server.metrics()["deeproot_recomputed_tokens_total"]
        assert sum(said) == recomputed > 0
        assert {one["cause"] for one in found} == {"first_seen"}


def test_misses_are_counted_by_cause(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options) as server:
        for time in ("10:15:00", "10:16:00", "10:16:00"):
            system = {"role": "system", "content": f"{time} {fresh('count')['content']}"}
            httpx.post(f"{server.url}/v1/chat/completions", json={"messages": [system, ASK], "max_tokens": 1})

        def missed() -> dict[str, float]:
            return {
                name.split('"')[1]: value
                for name, value in server.metrics().items()
                if name.startswith("deeproot_missed_tokens_total")
            }

        computed = server.metrics()["deeproot_computed_tokens_total"]
        wait_until(lambda: sum(missed().values()) == computed - 3)
        assert missed()["changed_time"] > 80


def test_switched_off(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, ServerOptions(port=0, explain_memory_bytes=0)) as server:
        body = {"messages": [ASK], "max_tokens": 1}
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body).status_code == 200
        asked = {**body, "deeproot": {"explain": True}}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked)
        assert answer.status_code == 400
        assert "--explain-memory-bytes" in answer.json()["error"]["message"]


def test_a_new_engine_and_the_command(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "tiny")
    size = ("--kv-cache-memory-bytes", "32MiB", "--max-num-seqs", "8")
    dummy = ("--load-format", "dummy", "--dtype", "float32", "--device", "cpu")
    with serve("--model", str(folder), *dummy, *size) as process:
        messages = [fresh("restart"), ASK]
        ask(process.url, messages)

        os.kill(engine_of(process), signal.SIGKILL)

        def restarted() -> bool:
            metrics = parse_metrics(httpx.get(f"{process.url}/metrics").text)
            up = httpx.get(f"{process.url}/ready").status_code == 200
            return metrics["deeproot_engine_restarts_total"] == 1 and up

        wait_until(restarted, 120)
        answer = ask(process.url, messages)
        assert explained(answer)["cause"] == "engine_restarted"
        one = run_command("explain", answer["id"], "--url", process.url)
        assert one.returncode == 0, one.stderr
        assert "cause     engine_restarted" in one.stdout
        listed = run_command("explain", "--url", f"{process.url}/v1")
        assert next(line.split()[1] for line in listed.stdout.splitlines()) == answer["id"]
        as_json = run_command("explain", "--json", "--limit", "1", "--url", process.url)
        assert json.loads(as_json.stdout) == [explained(answer)]
        unknown = run_command("explain", "chatcmpl-x/y?", "--url", process.url)
        assert unknown.returncode == 1
        assert "chatcmpl-x" in unknown.stderr
    gone = run_command("explain", "--url", process.url)
    assert gone.returncode == 1
    assert "--url" in gone.stderr


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"max_tokens": 2, "system": "It is {} here.", "messages": [ASK]}),
        ("responses", {"max_output_tokens": 2, "instructions": "It is {} there.", "input": "Where to?"}),
    ],
)
def test_other_surfaces_explain_too(
    server: RunningServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    hour = 10 + 2 * (path == "messages") + stream

    def ask(minute: int) -> dict[str, Any]:
        filled = json.loads(json.dumps(body).replace("{}", f"{hour}:{minute}:00"))
        answer = httpx.post(
            f"{server.url}/v1/{path}",
            json={**filled, "stream": stream},
            headers={"X-Deeproot-Explain": "1"},
        )
        last = answer.text.strip().split("\n")[-1].removeprefix("data: ") if stream else answer.text
        (explanation,) = json.loads(last)["deeproot"]["explanations"]
        found: dict[str, Any] = explanation
        return found

    ask(15)
    later = ask(16)
    assert later["cause"] == "changed_time"
    assert later["divergence"]["segment"].startswith("messages[0]")
