"""What is read: streams, how they can fail, and the counters of every engine."""

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Answer, Server
from deeproot.bench.live.counters import Counted, parse_counters
from deeproot.bench.live.drive import Load, drive
from deeproot.bench.live.figures import Limits

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
