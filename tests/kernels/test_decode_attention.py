"""Split decode in the interpreter against its torch twin."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.attention_calls import DECODE, FEW, TOLERANCE, run_decode, wanted_decode

from deeproot.kernels.configs import DecodeConfig


@FEW
@given(
    totals=st.lists(
        st.one_of(st.sampled_from([1, 15, 16, 17, 255, 256, 257]), st.integers(1, 300)),
        min_size=1,
        max_size=3,
    ),
    form=st.sampled_from(list(DECODE)),
    group=st.sampled_from([1, 2, 3, 5, 7, 8]),
    splits=st.sampled_from([1, 3, 8]),
    window=st.sampled_from([0, 0, 1, 100]),
    soft_cap=st.sampled_from([0.0, 0.0, 3.0]),
    seed=st.integers(0, 99),
)
def test_decode_is_attention(
    make_paged: Callable[..., Any],
    error: Callable[..., float],
    totals: list[int],
    form: str,
    group: int,
    splits: int,
    window: int,
    soft_cap: float,
    seed: int,
) -> None:
    paged = make_paged([1] * len(totals), totals, kv_heads=1, group=group, seed=seed)
    out, lse, used = run_decode(paged, DECODE[form], splits=splits, window=window, soft_cap=soft_cap)
    wanted, wanted_lse = wanted_decode(paged, window=window, soft_cap=soft_cap)
    assert error(out, wanted) < 1e-5
    assert error(lse, wanted_lse) < 1e-5
    assert 1 <= int(used[: len(totals)].min()) <= int(used[: len(totals)].max()) <= splits


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", DECODE)
def test_decode_in_each_dtype(
    make_paged: Callable[..., Any], error: Callable[..., float], dtype: torch.dtype, form: str
) -> None:
    paged = make_paged([1, 1], [40, 270], kv_heads=2, group=3, dtype=dtype)
    out, lse, _ = run_decode(paged, DECODE[form], splits=4)
    wanted, wanted_lse = wanted_decode(paged)
    assert error(out, wanted) < TOLERANCE[dtype]
    assert error(lse, wanted_lse) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("form", DECODE)
@pytest.mark.parametrize("fp8", [False, True])
def test_decode_at_each_head_dim(
    make_paged: Callable[..., Any], error: Callable[..., float], head_dim: int, form: str, fp8: bool
) -> None:
    dtype = torch.bfloat16 if fp8 else torch.float32
    paged = make_paged([1, 1], [33, 5], kv_heads=2, group=4, head_dim=head_dim, dtype=dtype, fp8=fp8)
    out, _, _ = run_decode(paged, DECODE[form], splits=2)
    assert error(out, wanted_decode(paged)[0]) < (1e-2 if fp8 else 1e-5)


@pytest.mark.parametrize("group", [9, 12, 16])
def test_decode_of_wide_groups(
    make_paged: Callable[..., Any], error: Callable[..., float], group: int
) -> None:
    paged = make_paged([1], [40], group=group)
    out, _, _ = run_decode(paged, DecodeConfig("gather", 32, 16, 4, 2), splits=2)
    assert error(out, wanted_decode(paged)[0]) < 1e-5


@pytest.mark.parametrize(("window", "soft_cap"), [(25, 0.0), (0, 2.0)])
def test_decode_over_fp8_pools(
    make_paged: Callable[..., Any], error: Callable[..., float], window: int, soft_cap: float
) -> None:
    paged = make_paged([1, 1], [40, 270], kv_heads=2, group=3, dtype=torch.bfloat16, fp8=True)
    out, lse, _ = run_decode(paged, DECODE["gather"], splits=4, window=window, soft_cap=soft_cap)
    wanted, wanted_lse = wanted_decode(paged, window=window, soft_cap=soft_cap)
    assert error(out, wanted) < 1e-2
    assert error(lse, wanted_lse) < 1e-2


def test_two_terms_of_fp8_keep_what_bf16_keeps(make_paged: Callable[..., Any]) -> None:
    """A query in one e4m3 term would be off by several percent; the logits' LSE shows it directly."""
    paged = make_paged([1], [16], group=4, head_dim=128, dtype=torch.bfloat16, fp8=True)
    paged.q *= 20
    _, lse, _ = run_decode(paged, DECODE["gather"], splits=1)
    _, wanted = wanted_decode(paged)
    q = paged.q.float()
    one_term = (q / (q.abs().amax(-1, keepdim=True) / 448)).to(torch.float8_e4m3fn).float() * (
        q.abs().amax(-1, keepdim=True) / 448
    )
    paged.q = one_term.to(torch.bfloat16)
    _, coarse = wanted_decode(paged)
    assert (lse - wanted).abs().max() < 0.15 * (coarse - wanted).abs().max()


def test_number_of_splits_follows_length_and_batch(make_paged: Callable[..., Any]) -> None:
    """ceil(2 * multiprocessors / (items * kv_heads)) splits, at most one a 256 tokens."""
    paged = make_paged([1, 1, 1], [16, 520, 300], kv_heads=2)
    for multiprocessors, wanted in ((132, [1, 3, 2]), (6, [1, 2, 2]), (1, [1, 1, 1])):
        _, _, used = run_decode(paged, DECODE["gather"], splits=8, multiprocessors=multiprocessors)
        assert used.tolist()[:3] == wanted


def test_fixed_splits_do_not_depend_on_the_batch(make_paged: Callable[..., Any]) -> None:
    paged = make_paged([1, 1], [300, 40], kv_heads=2, group=2)
    together, _, used = run_decode(paged, DECODE["gather"], splits=10, split_tokens=32)
    assert used.tolist()[:2] == [10, 2]
    paged.new, paged.total, paged.q = [1], [300], paged.q[:, :1].contiguous()
    alone, _, _ = run_decode(paged, DECODE["gather"], splits=10, split_tokens=32)
    assert torch.equal(together[0], alone[0])
