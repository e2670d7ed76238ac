"""Block ids become token ids that share the same; the proof on the real trace."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.mooncake import (
    TraceError,
    calls_of_blocks,
    conversation,
    read_trace,
)
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.runtime.context.prefix_cost import common_prefix

from .blocks import shared_by_blocks


def test_infinite_cache_of_the_conversation_trace_by_tree_and_by_set() -> None:
    """The first 2,000 requests: what our tree finds without eviction is what a set of block ids finds."""
    requests = conversation()
    assert len(requests) == 2000
    by_set = shared_by_blocks(requests)
    tree = OwnTree(num_pages=200_000, page_size=512)
    by_tree = [tree.serve(call).cached for call in calls_of_blocks(requests)]
    assert by_tree == by_set
    assert [tokens // 512 for tokens in by_tree] == [tokens // 512 for tokens in by_set]
    total = sum(request.input_length for request in requests)
    assert round(sum(by_set) / total, 3) == 0.294  # as docs/layouts.md says


traces = st.lists(
    st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 4)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(traces)
def test_tokens_share_what_blocks_share(trace: list[tuple[list[int], int]]) -> None:
    lines = [json.dumps({"hash_ids": ids, "input_length": (len(ids) - 1) * 4 + last}) for ids, last in trace]
    requests = read_trace(lines, block=4)
    calls = calls_of_blocks(requests, block=4)
    for one, a in zip(requests, calls, strict=True):
        assert a.prompt.size == one.input_length
        for other, b in zip(requests, calls, strict=True):
            same = 0
            while (
                same < min(len(one.hash_ids), len(other.hash_ids))
                and one.hash_ids[same] == other.hash_ids[same]
            ):
                same += 1
            assert common_prefix(a.prompt, b.prompt) == min(same * 4, a.prompt.size, b.prompt.size)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", "line 1: not JSON"),
        ("3", "not an object"),
        ('{"input_length": 3}', "hash_ids"),
        ('{"hash_ids": [-1], "input_length": 3}', "hash_ids"),
        ('{"hash_ids": [true], "input_length": 3}', "hash_ids"),
        ('{"hash_ids": [1, 2], "input_length": 512}', "513 to 1024"),
        ('{"hash_ids": [1], "input_length": 3, "output_length": -1}', "output_length"),
        ('{"hash_ids": [1], "input_length": 3, "timestamp": "now"}', "timestamp"),
        ("", "no request"),
    ],
)
def test_bad_lines_are_named(line: str, field: str) -> None:
    with pytest.raises(TraceError, match=field):
        read_trace([line])


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["hash_ids", "input_length", "timestamp", "x"]), inner, max_size=3
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        (request,) = read_trace([json.dumps(value)])
    except TraceError:
        return
    assert calls_of_blocks([request])[0].prompt.size == request.input_length
