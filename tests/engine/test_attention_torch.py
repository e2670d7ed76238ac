"""The torch backend against attention written out in float64, over random batches in a pool full of poison."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.attention_check import Kind, check
from tests.engine.batches import Chunk, make_batch

from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.kv_pool import KVLayout, KVPool

HEAD_DIM = 8

KINDS = st.builds(
    Kind,
    scale=st.none() | st.floats(0.1, 2.0),
    cap=st.none() | st.floats(0.3, 5.0),
    window=st.none() | st.integers(1, 70),
)


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20) | st.just(1)), min_size=1, max_size=6),
    group=st.integers(1, 4),
    num_kv_heads=st.integers(1, 3),
    page_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 2**31),
    kind=KINDS,
)
def test_equals_brute_force(
    lengths: list[tuple[int, int]], group: int, num_kv_heads: int, page_size: int, seed: int, kind: Kind
) -> None:
    check(lengths, group, num_kv_heads, page_size, seed, kind=kind)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_around_page_edges(page_size: int, edge: int) -> None:
    n = 2 * page_size + edge
    check([(n - 1, 1), (0, n), (n - 5, 5), (page_size, n - page_size)], 3, 2, page_size, seed=5)


def test_decodes_of_very_different_lengths() -> None:
    check([(0, 1), (1, 1), (2, 1), (3, 1), (300, 1), (31, 1), (32, 1), (299, 1)], 3, 2, 16, seed=6)


def test_decodes_of_one_length_share_a_page_count() -> None:
    check([(20, 1)] * 5, 3, 2, 16, seed=7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    check([(40, 1), (23, 1), (0, 50), (30, 20)], 3, 2, 16, seed=8, dtype=dtype, tolerance=1e-2)


def test_a_scale_of_ones_own() -> None:
    check([(40, 1), (23, 1), (0, 50), (30, 20)], 3, 2, 16, seed=9, kind=Kind(scale=0.7))


MIXED = [(40, 1), (23, 1), (0, 50), (30, 20), (0, 1), (15, 1), (16, 1), (299, 1), (250, 30)]


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 49, 50, 51, 280, 300, 301])
@pytest.mark.parametrize("cap", [None, 1.0])
def test_windows_around_page_edges_and_lengths(window: int, cap: float | None) -> None:
    check(MIXED, 3, 2, 16, seed=10, kind=Kind(cap=cap, window=window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_with_cap_and_window(dtype: torch.dtype) -> None:
    check(MIXED, 3, 2, 16, seed=11, dtype=dtype, kind=Kind(cap=1.0, window=20), tolerance=1e-2)


def test_a_window_reads_only_its_pages() -> None:
    """Pages before the window may be overwritten by anything, NaN included."""
    page_size, length, window = 16, 200, 20
    pool = KVPool(KVLayout(1, 1, HEAD_DIM, page_size, torch.float32), 13)
    generator = torch.Generator().manual_seed(0)
    for tensor in pool.kv(0):
        tensor.normal_(generator=generator)
        tensor[: (length - window) // page_size] = torch.nan
    attention = TorchAttention(pool, windows=[window])
    attention.plan(make_batch([Chunk([0] * length, length - 1, list(range(13)))], page_size))
    q, k = torch.randn(1, 2, HEAD_DIM, generator=generator), torch.randn(1, 1, HEAD_DIM, generator=generator)
    assert attention.run(0, q, k, k).isfinite().all()


def test_run_before_plan_is_refused() -> None:
    pool = KVPool(KVLayout(1, 1, HEAD_DIM, 16, torch.float32), 1)
    q = torch.zeros(1, 1, HEAD_DIM)
    with pytest.raises(RuntimeError, match="before plan"):
        TorchAttention(pool).run(0, q, q, q)
