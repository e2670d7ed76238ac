"""What is asked: prompts that share what their sources share, and when they are sent."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.mooncake import calls_of_blocks, conversation
from deeproot.bench.live.asks import HIGH_ID, LOW_ID, Ask, asks_of_calls, asks_of_conversation, plain_messages
from deeproot.bench.live.drive import Arrivals, Load, arrival_times
from deeproot.bench.live.sources import infinite_share
from deeproot.runtime.context.prefix_cost import common_prefix

from ..cachesim.blocks import shared_by_blocks
from .messages import MESSAGES


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


def test_loads() -> None:
    asks = [Ask("s", 1, t, 1, prompt=(1,)) for t in (10.0, 12.0, 20.0)]
    assert arrival_times(asks, Load(Arrivals.RECORDED, speed=2.0)) == [0.0, 1.0, 5.0]
    many = asks * 400
    times = arrival_times(many, Load(Arrivals.POISSON, rate=4.0, seed=2))
    assert times == arrival_times(many, Load(Arrivals.POISSON, rate=4.0, seed=2))
    assert times[-1] / len(many) == pytest.approx(1 / 4, rel=0.15)
    assert np.std(np.diff(times)) == pytest.approx(1 / 4, rel=0.15)
