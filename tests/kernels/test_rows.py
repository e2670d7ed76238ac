"""The kernels that work row by row against their twins: store_kv, relocate, copy_pages, rmsnorm, silu_mul."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deeproot.kernels import reference
from deeproot.kernels.copy_pages import copy_pages, zero_pages
from deeproot.kernels.relocate import relocate, relocation_angles
from deeproot.kernels.rmsnorm import rmsnorm
from deeproot.kernels.silu_mul import silu_mul
from deeproot.kernels.store_kv import store_kv

FEW = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FP8 = torch.float8_e4m3fn
HALF_EXACT = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 6e-4}
Error = Callable[[torch.Tensor, torch.Tensor], float]


def angles(positions: int, dim: int) -> torch.Tensor:
    """cos and sin of positions, `[positions, dim]`, by float64."""
    inverse = 10000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    turns = torch.arange(positions, dtype=torch.float64)[:, None] * inverse
    return torch.cat((turns.cos(), turns.sin()), -1).float()


@FEW
@given(
    tokens=st.sampled_from([1, 2, 17]),
    kv_heads=st.sampled_from([1, 3]),
    group=st.sampled_from([1, 2, 3, 7]),
    dim=st.sampled_from([64, 96, 128]),
    page=st.sampled_from([16, 64]),
    norm=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    fp8=st.booleans(),
    seed=st.integers(0, 99),
)
def test_store_kv(
    error: Error,
    tokens: int,
    kv_heads: int,
    group: int,
    dim: int,
    page: int,
    norm: bool,
    dtype: torch.dtype,
    fp8: bool,
    seed: int,
) -> None:
    rng = torch.Generator().manual_seed(seed)
    heads = kv_heads * group
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * dim, generator=rng).to(dtype)
    q, k, v = (
        x.unflatten(1, (-1, dim)) for x in fused.split((heads * dim, kv_heads * dim, kv_heads * dim), 1)
    )
    v[0, 0, 0] = 3.0e4
    slots = torch.randperm(4 * page, generator=rng)[:tokens]
    positions = torch.randint(0, 300, (tokens,), generator=rng)
    weights = {
        "q_weight": torch.rand(dim, generator=rng).to(dtype),
        "k_weight": torch.rand(dim, generator=rng).to(dtype),
    }
    scales = {
        "k_scale": torch.rand(kv_heads, generator=rng) + 0.1,
        "v_scale": torch.rand(kv_heads, generator=rng) + 0.1,
    }
    options = (weights if norm else {}) | (scales if fp8 else {})
    results = []
    for run in (store_kv, reference.store_kv):
        pools = [torch.zeros(4, kv_heads, page, dim).to(FP8 if fp8 else dtype) for _ in range(2)]
        packed = torch.full((kv_heads, tokens, group, dim), math.nan, dtype=dtype)
        run(q, k, v, angles(300, dim), positions, slots, packed, *pools, **options)
        results.append((packed, *pools))
    (packed, k_pool, v_pool), (wanted, wanted_k, wanted_v) = results
    assert error(packed, wanted) < HALF_EXACT[dtype]
    # a rounding apart at most: fp8 has 3 bits of mantissa
    assert error(k_pool.float(), wanted_k.float()) < (1e-2 if fp8 else HALF_EXACT[dtype])
    assert torch.equal(v_pool.float(), wanted_v.float())
    touched = torch.zeros(4 * page, dtype=torch.bool)
    touched[slots] = True
    assert not k_pool.float().transpose(1, 2).flatten(0, 1)[~touched].any()


def test_store_kv_rotation_by_hand() -> None:
    """A unit vector along column 0 turns into cos(p) in column 0 and sin(p) in column d/2."""
    q = torch.zeros(1, 1, 64)
    q[0, 0, 0] = 1.0
    pools = [torch.zeros(1, 1, 16, 64) for _ in range(2)]
    packed = torch.empty(1, 1, 1, 64)
    store_kv(q, q, q, angles(8, 64), torch.tensor([3]), torch.tensor([5]), packed, *pools)
    wanted = torch.zeros(64)
    wanted[0], wanted[32] = math.cos(3.0), math.sin(3.0)
    torch.testing.assert_close(packed[0, 0, 0], wanted)
    torch.testing.assert_close(pools[0][0, 0, 5], wanted)
    assert torch.equal(pools[1][0, 0, 5], q[0, 0])


def test_store_kv_clamps_fp8_where_a_cast_gives_nan() -> None:
    v = torch.full((1, 1, 64), 1000.0)
    pools = [torch.zeros(1, 1, 16, 64).to(FP8) for _ in range(2)]
    one = torch.ones(1)
    store_kv(
        v,
        v,
        -v,
        angles(1, 64),
        torch.tensor([0]),
        torch.tensor([0]),
        torch.empty(1, 1, 1, 64),
        *pools,
        k_scale=one,
        v_scale=one,
    )
    assert set(pools[0][0, 0, 0].float().tolist()) == {448.0}
    assert set(pools[1][0, 0, 0].float().tolist()) == {-448.0}


@FEW
@given(
    kv_heads=st.sampled_from([1, 3]),
    dim=st.sampled_from([64, 96, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, FP8]),
    tokens=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_relocate(error: Error, kv_heads: int, dim: int, dtype: torch.dtype, tokens: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(2, 4, kv_heads, 16, dim, generator=rng).to(dtype) for _ in range(2))
    slots = torch.randperm(64, generator=rng)
    source, target = slots[:tokens], slots[32 : 32 + tokens]
    moved = torch.randint(-9000, 9000, (tokens,), generator=rng)
    inverse = 1e6 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    cos_sin = relocation_angles(moved, inverse)
    wanted_k, wanted_v = k.clone(), v.clone()
    reference.relocate(wanted_k, wanted_v, source, target, cos_sin)
    relocate(k, v, source, target, cos_sin)
    assert error(k.float(), wanted_k.float()) < {torch.float32: 1e-6, torch.bfloat16: 4e-3, FP8: 1e-2}[dtype]
    assert torch.equal(v.float(), wanted_v.float())


def test_relocate_clamps_what_a_rotation_lengthens() -> None:
    """448 in both halves, turned by 45 degrees: 0 and 634, which e4m3 does not have; and the other way about."""
    k = torch.zeros(1, 2, 1, 16, 64)
    k[0, 0, 0, :2] = 448.0
    k = k.to(FP8)
    cos_sin = torch.full((2, 64), math.sqrt(0.5))
    cos_sin[1, 32:] *= -1
    relocate(k, k.clone(), torch.tensor([0, 1]), torch.tensor([16, 17]), cos_sin)
    turned = k[0, 1, 0, :2].float()
    assert turned[:, 0].tolist() == [0.0, 448.0]
    assert turned[:, 32].tolist() == [448.0, 0.0]


def test_relocated_keys_are_the_keys_of_the_new_position() -> None:
    """Rotating by the difference equals rotating the bare key by the new position, at positions of 100,000 too."""
    bare = torch.randn(3, 64, dtype=torch.float64)
    old, new = torch.tensor([5, 100_000, 70_000]), torch.tensor([90_000, 7, 70_001])
    inverse = 10000.0 ** -(torch.arange(0, 64, 2, dtype=torch.float64) / 64)

    def at(position: torch.Tensor) -> torch.Tensor:
        turns = position.double()[:, None] * inverse
        return reference.rotate(bare, turns.cos(), turns.sin())

    pool = torch.zeros(1, 2, 1, 16, 64)
    pool[0, 0, 0, :3] = at(old).float()
    relocate(
        pool,
        pool.clone(),
        torch.tensor([0, 1, 2]),
        torch.tensor([16, 17, 18]),
        relocation_angles(new - old, inverse),
    )
    torch.testing.assert_close(pool[0, 1, 0, :3], at(new).float(), rtol=1e-5, atol=1e-5)


@FEW
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, FP8]),
    heads=st.sampled_from([1, 3]),
    page=st.sampled_from([16, 64]),
    counts=st.lists(st.integers(0, 16), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
def test_copy_pages(dtype: torch.dtype, heads: int, page: int, counts: list[int], seed: int) -> None:
    """Copies into pages that hold NaN, within a pool and into another of a different size."""
    rng = torch.Generator().manual_seed(seed)
    pool = torch.randn(2, 8, heads, page, 64, generator=rng).to(dtype)
    tokens = torch.tensor(counts, dtype=torch.int32) * (page // 16)
    order = torch.randperm(8, generator=rng).int()
    source, target = order[: len(counts)].contiguous(), order[4 : 4 + len(counts)].contiguous()
    pool[:, target.long()] = torch.full((), math.nan).to(dtype)
    tier = torch.full((2, 5, heads, page, 64), math.nan).to(dtype)
    for destination, pages in ((tier, torch.arange(len(counts), dtype=torch.int32)), (pool, target)):
        wanted = destination.clone()
        reference.copy_pages(pool, wanted, source, pages, tokens)
        copy_pages(pool, destination, source, pages, tokens)
        assert torch.equal(destination.view(torch.uint8), wanted.view(torch.uint8))


def test_zero_pages_leaves_the_others() -> None:
    pool = torch.full((2, 4, 1, 16, 64), math.nan, dtype=torch.bfloat16)
    pool[:, 1] = 7.0
    zero_pages(pool, torch.tensor([0, 3], dtype=torch.int32))
    assert not pool[:, [0, 3]].any()
    assert (pool[:, 1] == 7.0).all()
    assert pool[:, 2].isnan().all()


@FEW
@given(
    rows=st.integers(1, 3),
    columns=st.sampled_from([64, 576, 1000]),
    with_residual=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 99),
)
def test_rmsnorm(
    error: Error, rows: int, columns: int, with_residual: bool, dtype: torch.dtype, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    x, residual = (torch.randn(rows, columns, generator=rng).to(dtype) for _ in range(2))
    weight = torch.rand(columns, generator=rng).to(dtype)
    mine, twins = (residual.clone() if with_residual else None for _ in range(2))
    got, wanted = rmsnorm(x, weight, 1e-5, mine), reference.rmsnorm(x, weight, 1e-5, twins)
    exact = (x.double() + residual.double()) if with_residual else x.double()
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert error(got, wanted) < HALF_EXACT[dtype]
    assert error(got, exact) < 2 * HALF_EXACT[dtype]
    if mine is not None and twins is not None:
        assert torch.equal(mine, twins)


@FEW
@given(
    rows=st.integers(1, 3),
    columns=st.sampled_from([1, 64, 1536]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_silu_mul(error: Error, rows: int, columns: int, dtype: torch.dtype) -> None:
    gate_up = (torch.randn(rows, 2 * columns, generator=torch.Generator().manual_seed(columns)) * 20).to(
        dtype
    )
    gate, up = gate_up.double().chunk(2, -1)
    assert error(silu_mul(gate_up), torch.nn.functional.silu(gate) * up) < HALF_EXACT[dtype]
    assert error(silu_mul(gate_up), reference.silu_mul(gate_up)) < HALF_EXACT[dtype]


def test_launches_name_what_does_not_fit() -> None:
    pool = torch.zeros(1, 2, 1, 16, 64)
    pages = torch.tensor([0], dtype=torch.int32)
    with pytest.raises(ValueError, match="target_pages must be a contiguous int32"):
        copy_pages(pool, pool, pages, pages.long(), pages)
    with pytest.raises(ValueError, match="source and target must be int64 slots"):
        relocate(pool, pool, pages, pages, torch.zeros(1, 64))
    with pytest.raises(ValueError, match=r"weight must be \[64\]"):
        rmsnorm(torch.zeros(2, 64), torch.zeros(3), 1e-5)
    x = torch.zeros(1, 1, 64)
    fp8 = pool[0].to(FP8)
    with pytest.raises(ValueError, match="k_scale and v_scale are needed"):
        store_kv(x, x, x, angles(1, 64), pages.long(), pages.long(), torch.empty(1, 1, 1, 64), fp8, fp8)
