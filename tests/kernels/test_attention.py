"""Paged prefill and decode in the interpreter against their torch twins, over ragged shapes and poisoned memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from triton.runtime import interpreter

from deeproot.kernels import reference
from deeproot.kernels.cascade import split_decode
from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.kernels.paged_prefill import paged_prefill

GATHER = PrefillConfig("gather", 32, 32, 4, 2)
TILE = PrefillConfig("descriptor", 32, 16, 4, 2)
SPECIALISED = PrefillConfig("specialised", 32, 16, 4, 2)
CONFIGS = {"gather": GATHER, "descriptor": TILE, "specialised": SPECIALISED}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def run_prefill(paged: Any, config: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    """(output, LSE) of the kernel, written into NaN."""
    heads = paged.q.shape[0] * paged.group
    out = torch.full((paged.q.shape[1], heads, paged.q.shape[3]), math.nan, dtype=paged.q.dtype)
    lse = torch.full(out.shape[:2], math.nan)
    items, count = paged.prefill_items(config.block_m)
    paged_prefill(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=paged.q.shape[3] ** -0.5, window=window, soft_cap=soft_cap, config=config, **paged.scales(),
    )  # fmt: skip
    return out, lse


def wanted_prefill(paged: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    """(output, LSE) of the twin in float64."""
    heads = paged.q.shape[0] * paged.group
    out = torch.empty(paged.q.shape[1], heads, paged.q.shape[3], dtype=torch.float64)
    lse = torch.empty(out.shape[:2], dtype=torch.float64)
    items, count = paged.prefill_items(1 << 20)
    reference.paged_prefill(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=paged.q.shape[3] ** -0.5, window=window, soft_cap=soft_cap, dtype=torch.float64, **paged.scales(),
    )  # fmt: skip
    return out, lse


def run_decode(
    paged: Any,
    config: Any,
    *,
    splits: int,
    window: int = 0,
    soft_cap: float = 0.0,
    split_tokens: int = 0,
    multiprocessors: int = 8,
) -> Any:
    heads, head_dim = paged.q.shape[0] * paged.group, paged.q.shape[3]
    items, count = paged.decode_items()
    capacity = items.shape[0]
    partial = torch.full((splits, capacity, heads, head_dim), math.nan)
    partial_lse = torch.full(partial.shape[:3], math.nan)
    used = torch.full((capacity,), 1 << 20, dtype=torch.int32)
    out = torch.full((paged.q.shape[1], heads, head_dim), math.nan, dtype=paged.q.dtype)
    lse = torch.full(out.shape[:2], math.nan)
    split_decode(
        paged.q, paged.k, paged.v, paged.table, items, count, partial, partial_lse, used, out, lse,
        softmax_scale=head_dim**-0.5, window=window, soft_cap=soft_cap, split_tokens=split_tokens, config=config,
        multiprocessors=multiprocessors, **paged.scales(),
    )  # fmt: skip
    return out, lse, used


def wanted_decode(paged: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    heads, head_dim = paged.q.shape[0] * paged.group, paged.q.shape[3]
    items, count = paged.decode_items()
    out = torch.full((paged.q.shape[1], heads, head_dim), math.nan, dtype=torch.float64)
    lse = torch.full(out.shape[:2], math.nan, dtype=torch.float64)
    reference.paged_decode(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=head_dim**-0.5, window=window, soft_cap=soft_cap, dtype=torch.float64, **paged.scales(),
    )  # fmt: skip
    return out, lse


@st.composite
def ragged(draw: Callable[..., Any]) -> Any:
    """New and total tokens of one to three sequences, at the page's edges above all."""
    page = draw(st.sampled_from([16, 32]))
    edges = st.sampled_from([1, page - 1, page, page + 1, 2 * page, 3 * page + 5])
    new, total = [], []
    for _ in range(draw(st.integers(1, 3))):
        tokens = draw(st.one_of(edges, st.integers(1, 70)))
        total.append(tokens)
        new.append(draw(st.one_of(st.just(1), st.just(tokens), st.integers(1, tokens))))
    return page, new, total


FEW = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@FEW
@given(
    shape=ragged(),
    form=st.sampled_from(["gather", "descriptor", "specialised"]),
    group=st.sampled_from([1, 2, 3, 5, 7]),
    kv_heads=st.integers(1, 2),
    window=st.sampled_from([0, 0, 1, 20]),
    soft_cap=st.sampled_from([0.0, 0.0, 3.0]),
    seed=st.integers(0, 99),
)
def test_prefill_is_attention(
    make_paged: Callable[..., Any],
    error: Callable[..., float],
    shape: Any,
    form: str,
    group: int,
    kv_heads: int,
    window: int,
    soft_cap: float,
    seed: int,
) -> None:
    page, new, total = shape
    paged = make_paged(new, total, kv_heads=kv_heads, group=group, page=page, seed=seed)
    out, lse = run_prefill(paged, CONFIGS[form], window=window, soft_cap=soft_cap)
    wanted, wanted_lse = wanted_prefill(paged, window=window, soft_cap=soft_cap)
    assert error(out, wanted) < 1e-5
    assert error(lse, wanted_lse) < 1e-5


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", CONFIGS)
def test_prefill_in_each_dtype(
    make_paged: Callable[..., Any], error: Callable[..., float], dtype: torch.dtype, form: str
) -> None:
    paged = make_paged([5, 37, 1], [40, 70, 49], kv_heads=2, group=3, dtype=dtype)
    out, lse = run_prefill(paged, CONFIGS[form])
    wanted, wanted_lse = wanted_prefill(paged)
    assert error(out, wanted) < TOLERANCE[dtype]
    assert error(lse, wanted_lse) < TOLERANCE[dtype]


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("form", CONFIGS)
def test_prefill_at_each_head_dim(
    make_paged: Callable[..., Any], error: Callable[..., float], head_dim: int, form: str
) -> None:
    paged = make_paged([9, 20], [33, 20], group=2, head_dim=head_dim)
    out, lse = run_prefill(paged, CONFIGS[form])
    wanted, wanted_lse = wanted_prefill(paged)
    assert error(out, wanted) < 1e-5
    assert error(lse, wanted_lse) < 1e-5


@pytest.mark.parametrize("page", [16, 32, 64, 128])
@pytest.mark.parametrize("form", CONFIGS)
def test_prefill_at_each_page_size(
    make_paged: Callable[..., Any], error: Callable[..., float], page: int, form: str
) -> None:
    paged = make_paged([30, 3], [130, 3], page=page)
    out, _ = run_prefill(paged, CONFIGS[form])
    assert error(out, wanted_prefill(paged)[0]) < 1e-5


@pytest.mark.parametrize("form", ["gather", "descriptor"])
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (25, 0.0), (0, 2.0)])
def test_prefill_over_fp8_pools(
    make_paged: Callable[..., Any], error: Callable[..., float], form: str, window: int, soft_cap: float
) -> None:
    paged = make_paged([5, 37], [40, 70], kv_heads=2, group=3, dtype=torch.bfloat16, fp8=True)
    out, lse = run_prefill(paged, CONFIGS[form], window=window, soft_cap=soft_cap)
    wanted, wanted_lse = wanted_prefill(paged, window=window, soft_cap=soft_cap)
    assert error(out, wanted) < 1e-2
    assert error(lse, wanted_lse) < 1e-2


def test_prefill_in_chunks_equals_prefill_at_once(make_paged: Callable[..., Any]) -> None:
    whole = make_paged([60], [60], group=2)
    at_once, _ = run_prefill(whole, GATHER)
    for start, end in ((0, 17), (17, 18), (18, 60)):
        chunk = make_paged([60], [60], group=2)
        chunk.q, chunk.new, chunk.total = whole.q[:, start:end].contiguous(), [end - start], [end]
        out, _ = run_prefill(chunk, GATHER)
        torch.testing.assert_close(out, at_once[start:end], rtol=1e-5, atol=1e-6)


DECODE = {
    "gather": DecodeConfig("gather", 32, 8, 4, 2),
    "descriptor": DecodeConfig("descriptor", 16, 8, 4, 2),
}


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


def test_launches_refuse_what_does_not_fit(make_paged: Callable[..., Any]) -> None:
    paged = make_paged([2], [20], group=2)
    with pytest.raises(ValueError, match="does not divide a page of 16"):
        run_prefill(paged, PrefillConfig("descriptor", 32, 32, 4, 2))
    with pytest.raises(ValueError, match="split_tokens must be a multiple"):
        run_decode(paged, DECODE["gather"], splits=2, split_tokens=48)
    with pytest.raises(ValueError, match="block_h 1 is too small"):
        run_decode(paged, DecodeConfig("gather", 32, 1, 4, 2), splits=2)
    paged.q = paged.q.transpose(1, 2)
    with pytest.raises(ValueError, match="use pack_q"):
        run_prefill(paged, GATHER)


@pytest.mark.parametrize("form", CONFIGS)
def test_spare_items_do_no_work(
    make_paged: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A list of length 0 whose items are nonsense: not one tile is read, and nothing is written."""
    paged = make_paged([5], [40])
    items, _ = paged.prefill_items(32)
    items[:] = items[-1]

    def no_product(*_: Any) -> None:
        raise AssertionError("a tile was multiplied")

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", no_product)
    out, lse = torch.full((5, 1, 64), math.nan), torch.full((5, 1), math.nan)
    paged_prefill(
        paged.q, paged.k, paged.v, paged.table, items, torch.tensor([0], dtype=torch.int32), out, lse,
        softmax_scale=1.0, config=CONFIGS[form],
    )  # fmt: skip
    assert out.isnan().all()
    assert lse.isnan().all()
