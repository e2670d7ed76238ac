"""A replay against a server that runs here with a tiny model, and what surrounds it."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.mooncake import calls_of_blocks, conversation, shared_by_blocks
from deeproot.bench.live.asks import HIGH_ID, LOW_ID, Ask, asks_of_calls, asks_of_conversation, plain_messages
from deeproot.bench.live.client import Answer, Server
from deeproot.bench.live.counters import Counted, parse_counters
from deeproot.bench.live.drive import Arrivals, Load, arrival_times, drive
from deeproot.bench.live.figures import Limits
from deeproot.bench.live.sources import infinite_share
from deeproot.engine.batch import ForwardBatch
from deeproot.runtime.cli import main
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.engine_setup import LoadedEngine
from deeproot.runtime.options import EngineOptions
from deeproot.scheduler.flight import Pending

from ...runtime.server.harness import Known, RunningServer, running_server
from ...runtime.tiny_model import write_tiny_model

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in a?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "read", "arguments": '{"f":"a"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "name": "read", "content": "forty two"},
    {"role": "user", "content": "Well?"},
    {"role": "assistant", "content": "It says forty two."},
]


class Letters:
    """The real forward pass, whose every sample is then the letter a: most ids of this large vocabulary have no text."""

    def __init__(self, engine: LoadedEngine) -> None:
        self._forward = engine.scheduler.runner

    def launch(self, batch: ForwardBatch) -> Pending:
        sampled = self._forward.launch(batch).result()
        return Known(replace(sampled, token_ids=np.full_like(sampled.token_ids, 66)))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    model = write_tiny_model(
        tmp_path_factory.mktemp("live") / "m", vocab_size=HIGH_ID, max_position_embeddings=8192
    )
    options = EngineOptions(
        model=str(model), load_format="dummy", dtype="float32", kv_cache_memory_bytes=2**24, page_size=16
    )
    with running_server(options, wrap=Letters) as running:
        yield running


def replay(server: RunningServer, *more: str) -> list[str]:
    return ["bench", "replay", "--url", f"{server.url}/v1", "--max-tokens", "3", "--rounds", "1", *more]


def metrics_of(found: Mapping[str, Any]) -> dict[str, list[float]]:
    return {metric["name"]: metric["samples"] for metric in found["metrics"]}


def test_block_ids_share_on_the_server_what_they_share(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Counted by the server, one after another, beside a set of block ids and the server's own counters."""
    requests = [r for r in conversation(60) if r.input_length <= 2_000][:8]
    lines = [
        json.dumps(
            {
                "hash_ids": r.hash_ids,
                "input_length": r.input_length,
                "output_length": 2,
                "timestamp": 1000 * i,
            }
        )
        for i, r in enumerate([*requests, *requests[:2]])
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    flags = ["--file", str(trace), "--form", "blocks", "--max-prompt-tokens", "2000", "--sessions", "99"]
    assert main(replay(server, *flags, "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    shared = shared_by_blocks([*requests, *requests[:2]])
    # Four tokens of salt stand before each prompt: the first request has none of them, all others have.
    salt = [0] + [4] * (len(shared) - 1)
    total = sum(r.input_length + 4 for r in [*requests, *requests[:2]])
    expected = (sum(shared) + sum(salt)) / total
    (share,) = metrics_of(found)["cached share of prompts, server"]
    assert share == pytest.approx(expected)
    cached = next(table for table in found["tables"] if table["title"] == "Cached tokens")["rows"][0]
    assert cached[2] == cached[5] == f"{round(expected * total):,}"
    assert cached[4] == "deeproot"
    assert float(cached[7].rstrip("%")) / 100 == pytest.approx(
        sum(shared) / (total - 4 * len(shared)), abs=1e-3
    )


def test_two_servers_in_turns(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps([{"messages": MESSAGES}, {"messages": MESSAGES}]))
    pair = [f"{server.url}/v1=one", f"{server.url}/v1/=two"]
    flags = ["bench", "replay", "--file", str(log), "--form", "runs", "--compare", *pair, "--max-tokens", "4"]
    out = tmp_path / "out"
    before = server.metrics()
    assert (
        main(
            [
                *flags,
                "--rounds",
                "3",
                "--concurrency",
                "2",
                "--gaps",
                "recorded",
                "--speed",
                "1000",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "TTFT, two over one" in shown
    found = json.loads((out / "result.json").read_text())
    taken = metrics_of(found)
    for name in ("one", "two"):
        assert len(taken[f"TTFT, {name}"]) == 3 * 4
        assert len(taken[f"goodput, {name}"]) == 3
        assert min(taken[f"TTFT, {name}"]) > 0
    by_turn = next(chart for chart in found["charts"] if chart["key"] == "ttft_by_turn")
    assert [[x for x, _ in line["points"]] for line in by_turn["lines"]] == [[1, 2], [1, 2]]
    assert "ttft_by_turn.png" in {path.name for path in out.iterdir()}
    asked = server.metrics()
    prompt = sum(asked[key] - before[key] for key in asked if key == "deeproot_prompt_tokens_total")
    rows = next(table for table in found["tables"] if table["title"] == "Cached tokens")["rows"]
    assert sum(int(row[1].replace(",", "")) for row in rows) == prompt


@pytest.mark.parametrize("workload", ["agents", "mooncake", "airline"])
def test_the_quick_form_of_each_workload(
    workload: str, server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ["--max-prompt-tokens", "200", "--arrivals", "poisson", "--rate", "200"]
    if workload == "airline":
        short = ["--sessions", "1", "--turns", "2"]
    assert main(replay(server, "--workload", workload, *short, "--quick", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert 0 < len(metrics_of(found)["TTFT, server"]) <= 12
    load = "Closed load" if workload == "airline" else "Open load"
    assert any(load in note for note in found["notes"])


def test_a_server_that_refuses_everything_is_said_so(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(replay(server, "--sessions", "1", "--quick", "--served-model", "another")) == 2
    assert "every request failed; the first: status 404" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--url", "http://127.0.0.1:9/v1"], "http://127.0.0.1:9/v1/models does not answer"),
        (["--url", "127.0.0.1:9"], "give a URL such as"),
        (["--compare", "http://127.0.0.1:9/v1=a", "http://127.0.0.1:9/v1=a"], "two servers are called 'a'"),
        (["--url", "http://127.0.0.1:9/v1", "--turns", "500", "--workload", "airline"], "--turns 500"),
    ],
)
def test_what_cannot_be_done_is_named(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "replay", *flags]) == 2
    assert said in capsys.readouterr().err


def test_messages_as_any_template_takes_them() -> None:
    made = plain_messages(MESSAGES)
    assert [m["role"] for m in made] == ["system", "user", "assistant", "user", "assistant"]
    assert made[2]["content"] == 'Call read: {"f":"a"}'
    assert made[3]["content"] == "Result of read:\nforty two\n\nWell?"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
                "content": st.text(max_size=5),
            }
        ),
        max_size=9,
    )
)
def test_every_prompt_of_a_conversation_begins_with_the_one_before(messages: list[dict[str, str]]) -> None:
    asks = asks_of_conversation(messages, "s", start_s=5, gap_s=2, max_tokens=9)
    answered = [
        i
        for i, m in enumerate(messages)
        if m["role"] == "assistant" and i and messages[i - 1]["role"] != "assistant"
    ]
    assert len(asks) == len(answered)
    for n, (ask, i) in enumerate(zip(asks, answered, strict=True)):
        assert list(ask.messages) == plain_messages(messages[:i])
        assert (ask.turn, ask.time_s) == (n + 1, 5 + 2 * n)
        assert all(a["role"] != b["role"] for a, b in pairwise(ask.messages))
    for one, other in pairwise(asks):
        assert other.messages[: len(one.messages)] == one.messages


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2**30), min_size=1, max_size=8), min_size=2, max_size=6),
    st.integers(1, 9),
)
def test_mapped_ids_share_what_the_ids_shared(prompts: list[list[int]], most: int) -> None:
    calls = [Call("s", 0.0, np.array(ids, dtype=np.int32)) for ids in prompts]
    asks = asks_of_calls(calls, max_tokens=5, max_prompt=most)
    arrays = [np.array(ask.prompt, dtype=np.int32) for ask in asks]
    assert all(LOW_ID <= token < HIGH_ID for ask in asks for token in ask.prompt)
    for i, call in enumerate(calls):
        assert len(asks[i].prompt) == min(most, call.prompt.size)
        for j in range(i):
            expected = min(common_prefix(call.prompt, calls[j].prompt), most)
            assert common_prefix(arrays[i], arrays[j]) == expected


def test_salts_differ_and_keep_what_is_shared() -> None:
    asks = [
        Ask("s", 1, 0.0, 1, messages=({"role": "user", "content": "hello"},)),
        Ask("s", 2, 0.0, 1, prompt=(5, 6)),
    ]
    for ask in asks:
        assert ask.salted("0011aaff") != ask.salted("0011aafe")
    assert asks[1].salted("0011aaff").prompt == (LOW_ID, LOW_ID + 17, LOW_ID + 170, LOW_ID + 255, 5, 6)
    assert asks[0].salted("0011aaff").messages[0]["content"] == "[0011aaff]\nhello"


def test_the_infinite_cache_of_a_block_trace() -> None:
    requests = conversation(40)
    asks = asks_of_calls(calls_of_blocks(requests), max_tokens=1, max_prompt=10**9)
    expected = sum(shared_by_blocks(requests)) / sum(r.input_length for r in requests)
    assert infinite_share(asks, Renderer()) == pytest.approx(expected)


PAGES = {
    "deeproot": (
        "deeproot_prompt_tokens_total 30.0\ndeeproot_cached_tokens_total 10.0\n"
        "deeproot_computed_tokens_total 20.0\ndeeproot_output_tokens_total 4.0\n",
        (30, 10, 20, 4),
    ),
    "vLLM": (
        '# TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries_total{engine="0"} 100.0\n'
        'vllm:prefix_cache_queries_total{engine="1"} 20.0\nvllm:prefix_cache_hits_total{engine="0"} 48.0\n'
        'vllm:generation_tokens_total{engine="0"} 7.0\n',
        (120, 48, 72, 7),
    ),
    "SGLang": (
        'sglang:prompt_tokens_total{model_name="m"} 50.0\nsglang:cached_tokens_total{model_name="m"} 20.0\n'
        'sglang:generation_tokens_total{model_name="m"} 9.0\n',
        (50, 20, 30, 9),
    ),
    "llama.cpp": (
        "llamacpp:prompt_tokens_total 306\nllamacpp:prompt_tokens_cached_total 606\n"
        "llamacpp:tokens_predicted_total 5\n",
        (None, 606, 306, 5),
    ),
}


@pytest.mark.parametrize("engine", list(PAGES))
def test_counters_of_every_engine(engine: str) -> None:
    text, (prompt, cached, computed, output) = PAGES[engine]
    found = parse_counters(text)
    assert found == Counted(engine, prompt, cached, computed, output)
    assert found is not None
    assert found.since(found) == Counted(engine, None if prompt is None else 0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_any_page_of_metrics_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_counters(text) is None


def test_loads() -> None:
    asks = [Ask("s", 1, t, 1, prompt=(1,)) for t in (10.0, 12.0, 20.0)]
    assert arrival_times(asks, Load(Arrivals.RECORDED, speed=2.0)) == [0.0, 1.0, 5.0]
    many = asks * 400
    times = arrival_times(many, Load(Arrivals.POISSON, rate=4.0, seed=2))
    assert times == arrival_times(many, Load(Arrivals.POISSON, rate=4.0, seed=2))
    assert times[-1] / len(many) == pytest.approx(1 / 4, rel=0.15)
    assert np.std(np.diff(times)) == pytest.approx(1 / 4, rel=0.15)


def _answering(handle: Any) -> Server:
    made = Server("x", "http://x/v1", "", "m")
    made.http = httpx.AsyncClient(transport=httpx.MockTransport(handle))
    return made


def test_what_a_stream_says_and_how_it_can_fail() -> None:
    chunks = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"reasoning_content": "b"}}]},
        {
            "choices": [],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        },
    ]
    good = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    texts = {
        "good": (200, good),
        "refused": (400, '{"error": "too long"}'),
        "late": (200, 'data: {"error": {"message": "out of memory"}}\n\n'),
        "torn": (200, "data: {not json\n\n"),
        "empty": (200, "data: [DONE]\n\n"),
    }
    ask = Ask("s", 1, 0.0, 5, prompt=(1,))

    async def all_of_them() -> dict[str, Answer]:
        return {
            name: await _answering(lambda request, a=answer: httpx.Response(a[0], text=a[1])).ask(ask, 0.0)
            for name, answer in texts.items()
        }

    found = asyncio.run(all_of_them())
    answer = found.pop("good")
    assert (answer.said, len(answer.pieces), answer.error) == ("ab", 2, None)
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (9, 4, 2)
    assert answer.tpot_s == pytest.approx(answer.pieces[1] - answer.pieces[0])
    assert Limits(9.0, 9.0).kept(answer)
    assert not Limits(0.0, 9.0).kept(answer)
    said = {"refused": "too long", "late": "out of memory", "torn": "JSONDecodeError", "empty": "broke off"}
    for name, bad in found.items():
        assert bad.error is not None
        assert said[name] in bad.error
        assert not Limits(9.0, 9.0).kept(bad)


def test_one_failing_request_leaves_the_others_be() -> None:
    asks = [Ask(f"s{i % 2}", i, 0.0, 1, prompt=(i,)) for i in range(6)]

    def handle(request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["prompt"] == [3]:
            raise httpx.ConnectError("gone")
        return httpx.Response(200, text='data: {"choices": [{"text": "x"}]}\n\n')

    done: list[str] = []
    made = asyncio.run(drive(_answering(handle), asks, Load(concurrency=2), done.append))
    assert [answer.turn for answer in made.answers] == list(range(6))
    assert [answer.error is None for answer in made.answers] == [True, True, True, False, True, True]
    assert len(done) == 6
