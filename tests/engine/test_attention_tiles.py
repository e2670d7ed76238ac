"""Attention in fixed tiles against attention written out in float64, over random batches in a pool full of poison."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.attention_check import Kind, check

from deeproot.engine.attention_tiles import TILE, TileAttention
from deeproot.engine.kv_pool import KVLayout, KVPool


def tiles(pool: KVPool, kind: Kind, num_qo_heads: int) -> TileAttention:
    return TileAttention(pool, kind.scale, kind.cap, [None, kind.window])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 20) | st.just(1)), min_size=1, max_size=4),
    group=st.integers(1, 4),
    num_kv_heads=st.integers(1, 3),
    page_size=st.sampled_from([1, 4, 16, 128]),
    seed=st.integers(0, 2**31),
    kind=st.builds(
        Kind,
        scale=st.none() | st.floats(0.1, 2.0),
        cap=st.none() | st.floats(0.3, 5.0),
        window=st.none() | st.integers(1, 160),
    ),
)
def test_equals_brute_force(
    lengths: list[tuple[int, int]], group: int, num_kv_heads: int, page_size: int, seed: int, kind: Kind
) -> None:
    check(lengths, group, num_kv_heads, page_size, seed, kind=kind, make_backend=tiles)


@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_around_tile_edges(edge: int) -> None:
    n = 2 * TILE + edge
    check([(n - 1, 1), (0, n), (n - 5, 5), (TILE, n - TILE)], 3, 2, 16, seed=5, make_backend=tiles)


def test_half_precision() -> None:
    lengths = [(40, 1), (200, 1), (0, 50)]
    check(lengths, 3, 2, 16, seed=8, dtype=torch.bfloat16, tolerance=1e-2, make_backend=tiles)


def test_pages_must_divide_a_tile() -> None:
    pool = KVPool(KVLayout(1, 1, 8, 48, torch.float32), 4)
    with pytest.raises(ValueError, match="48"):
        TileAttention(pool)
