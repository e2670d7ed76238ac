"""Paged prefill in the interpreter against its torch twin, over ragged shapes and poisoned memory."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.attention_calls import (
    CONFIGS,
    DECODE,
    FEW,
    GATHER,
    TOLERANCE,
    run_decode,
    run_prefill,
    wanted_prefill,
)
from triton.runtime import interpreter

from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.kernels.paged_prefill import paged_prefill


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
