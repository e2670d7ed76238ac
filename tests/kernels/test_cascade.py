"""Merging by LSE, and attention in two levels against attention in one."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deeproot.kernels import reference
from deeproot.kernels.cascade import cascade_decode, cascade_prefill, merge_states
from deeproot.kernels.configs import DecodeConfig, PrefillConfig

PREFILL = PrefillConfig("gather", 32, 32, 4, 2)
DECODE = DecodeConfig("gather", 32, 8, 4, 2)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    levels=st.integers(1, 5),
    rows=st.integers(1, 4),
    heads=st.sampled_from([1, 3, 8]),
    head_dim=st.sampled_from([64, 96, 128]),
    empty=st.floats(0, 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_merge_equals_its_twin(
    error: Callable[..., float],
    levels: int,
    rows: int,
    heads: int,
    head_dim: int,
    empty: float,
    dtype: torch.dtype,
    seed: int,
) -> None:
    rng = torch.Generator().manual_seed(seed)
    partial = torch.randn(levels, rows, heads, head_dim, generator=rng)
    lse = torch.randn(levels, rows, heads, generator=rng) * 30
    gone = torch.rand(lse.shape, generator=rng) < empty
    lse[gone] = -math.inf
    partial[gone] = math.nan
    out, out_lse = (
        torch.full((rows, heads, head_dim), math.nan, dtype=dtype),
        torch.full((rows, heads), math.nan),
    )
    merge_states(partial, lse, out, out_lse)
    wanted, wanted_lse = torch.empty(out.shape), torch.empty(out_lse.shape)
    reference.merge_states(partial, lse, wanted, wanted_lse)
    assert error(out, wanted) < (1e-5 if dtype == torch.float32 else 1e-2)
    torch.testing.assert_close(out_lse, wanted_lse, rtol=1e-5, atol=1e-5)


def test_merge_of_one_state_is_that_state_and_of_none_is_zero() -> None:
    partial = torch.randn(3, 2, 2, 64)
    lse = torch.full((3, 2, 2), -math.inf)
    lse[1, 0] = 7.0
    partial[:, 1] = math.nan
    out, out_lse = torch.empty(2, 2, 64), torch.empty(2, 2)
    merge_states(partial, lse, out, out_lse)
    assert torch.equal(out[0], partial[1, 0])
    assert torch.equal(out[1], torch.zeros(2, 64))
    assert out_lse.tolist() == [[7.0, 7.0], [-math.inf, -math.inf]]


def test_merge_by_hand() -> None:
    """Weights 2**3 and 2**1: (8 * 1 + 2 * 6) / 10."""
    partial = torch.stack((torch.full((1, 1, 64), 1.0), torch.full((1, 1, 64), 6.0)))
    out, lse = torch.empty(1, 1, 64), torch.empty(1, 1)
    merge_states(partial, torch.tensor([[[3.0]], [[1.0]]]), out, lse)
    torch.testing.assert_close(out, torch.full((1, 1, 64), 2.0))
    assert lse.item() == pytest.approx(math.log2(10))


def shared_prefix(make_paged: Callable[..., Any], totals: list[int], prefix: int, **shape: Any) -> Any:
    """Sequences whose first `prefix` tokens lie in the first sequence's pages."""
    paged = make_paged([1] * len(totals), totals, **shape)
    pages = prefix // paged.k.shape[2]
    paged.table[1:, :pages] = paged.table[0, :pages]
    return paged


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("fp8", [False, True])
def test_cascade_decode_equals_decode(
    make_paged: Callable[..., Any], error: Callable[..., float], pieces: int, fp8: bool
) -> None:
    """Tokens 0 to 2 share 96 tokens, token 3 shares none; the prefix comes in one piece or two, one level each."""
    dtype = torch.bfloat16 if fp8 else torch.float32
    paged = shared_prefix(make_paged, [100, 130, 97, 40], 96, kv_heads=2, group=3, dtype=dtype, fp8=fp8)
    bounds = torch.linspace(0, 96, pieces + 1).int().tolist()
    prefix = [
        (0, 0, 9, 0, 96, begin, end, level) for level, (begin, end) in enumerate(itertools.pairwise(bounds))
    ]
    items = [(0, 0, 96, 100), (1, 1, 96, 130), (2, 2, 96, 97), (3, 3, 0, 40)]
    partial = torch.full((pieces + 3, 4, 6, 64), math.nan)
    out, lse = torch.full((4, 6, 64), math.nan, dtype=dtype), torch.full((4, 6), math.nan)
    cascade_decode(
        paged.q, paged.k, paged.v, paged.table,
        torch.tensor(prefix, dtype=torch.int32), torch.tensor([pieces], dtype=torch.int32),
        torch.tensor(items, dtype=torch.int32), torch.tensor([4], dtype=torch.int32),
        partial, torch.full((pieces + 3, 4, 6), math.nan), torch.empty(4, dtype=torch.int32), out, lse,
        prefix_levels=pieces, softmax_scale=0.125, prefix_config=PREFILL, config=DECODE, **paged.scales(),
    )  # fmt: skip
    wanted, wanted_lse = torch.empty(4, 6, 64, dtype=torch.float64), torch.empty(4, 6, dtype=torch.float64)
    whole, count = paged.decode_items()
    reference.paged_decode(
        paged.q, paged.k, paged.v, paged.table, whole, count, wanted, wanted_lse,
        softmax_scale=0.125, dtype=torch.float64, **paged.scales(),
    )  # fmt: skip
    assert error(out, wanted) < (1e-2 if fp8 else 1e-5)
    assert error(lse, wanted_lse) < (1e-2 if fp8 else 1e-5)


def test_cascade_of_a_slice_of_the_batch(make_paged: Callable[..., Any], error: Callable[..., float]) -> None:
    """The decoding tokens of a mixed batch are a slice of q along tokens, which is not contiguous."""
    paged = shared_prefix(make_paged, [40, 50, 36], 32, kv_heads=2, group=2)
    q = torch.full((2, 10, 2, 64), math.nan)
    q[:, 7:] = paged.q
    sliced = q[:, 7:]
    items = torch.tensor([(0, 0, 32, 40), (1, 1, 32, 50), (2, 2, 32, 36)], dtype=torch.int32)
    prefix = torch.tensor([(0, 0, 6, 0, 32, 0, 32, 0)], dtype=torch.int32)
    out, lse = torch.empty(3, 4, 64), torch.empty(3, 4)
    cascade_decode(
        sliced, paged.k, paged.v, paged.table, prefix, torch.tensor([1], dtype=torch.int32), items,
        torch.tensor([3], dtype=torch.int32), torch.full((3, 3, 4, 64), math.nan), torch.full((3, 3, 4), math.nan),
        torch.empty(3, dtype=torch.int32), out, lse, prefix_levels=1, softmax_scale=0.125, prefix_config=PREFILL, config=DECODE,
    )  # fmt: skip
    wanted, wanted_lse = torch.empty(3, 4, 64), torch.empty(3, 4)
    whole, count = paged.decode_items()
    reference.paged_decode(
        paged.q, paged.k, paged.v, paged.table, whole, count, wanted, wanted_lse, softmax_scale=0.125
    )
    assert error(out, wanted) < 1e-5


def test_cascade_prefill_equals_prefill(make_paged: Callable[..., Any], error: Callable[..., float]) -> None:
    """Two chunks of 9 tokens on a shared prefix of 32: its rows packed in one item, the suffixes in their own."""
    paged = make_paged([9, 9], [50, 45], kv_heads=2, group=2)
    paged.table[1, :2] = paged.table[0, :2]
    wanted, wanted_lse = torch.empty(18, 4, 64, dtype=torch.float64), torch.empty(18, 4, dtype=torch.float64)
    whole, count = paged.prefill_items(1 << 20)
    reference.paged_prefill(
        paged.q,
        paged.k,
        paged.v,
        paged.table,
        whole,
        count,
        wanted,
        wanted_lse,
        softmax_scale=0.125,
        dtype=torch.float64,
    )
    items = [
        (0, 0, 32, 0, 32, 0, 32, 0),
        (0, 32, 4, 0, 32, 0, 32, 0),
        (0, 0, 18, 0, 41, 32, 50, 1),
        (1, 18, 18, 0, 36, 32, 45, 1),
    ]
    out, lse = torch.full((18, 4, 64), math.nan), torch.full((18, 4), math.nan)
    cascade_prefill(
        paged.q, paged.k, paged.v, paged.table, torch.tensor(items, dtype=torch.int32), torch.tensor([4], dtype=torch.int32),
        torch.full((2, 18, 4, 64), math.nan), torch.full((2, 18, 4), math.nan), out, lse, softmax_scale=0.125, config=PREFILL,
    )  # fmt: skip
    assert error(out, wanted) < 1e-5
    assert error(lse, wanted_lse) < 1e-5


def test_a_window_has_no_cascade(make_paged: Callable[..., Any]) -> None:
    paged = make_paged([1], [20])
    nothing = torch.empty(1, 1, 1, 64)
    with pytest.raises(ValueError, match="window"):
        cascade_decode(
            paged.q, paged.k, paged.v, paged.table, paged.table, paged.table, paged.table, paged.table,
            nothing, nothing, nothing, nothing, nothing, prefix_levels=1, softmax_scale=1.0, window=5,
        )  # fmt: skip
