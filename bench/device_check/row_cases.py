"""The kernels that work row by row, against their formulas written out in float64."""

from functools import partial

import torch

from deeproot.bench.device_check.cases import Case, Work, poisoned, size_of
from deeproot.bench.device_check.paged import FP8
from deeproot.kernels import cost, reference
from deeproot.kernels.cascade import merge_states
from deeproot.kernels.copy_pages import copy_pages
from deeproot.kernels.relocate import relocate, relocation_angles
from deeproot.kernels.rmsnorm import rmsnorm_launch
from deeproot.kernels.sample import sample_launch
from deeproot.kernels.silu_mul import silu_mul_launch
from deeproot.kernels.store_kv import store_kv

_EPS = 1e-6
_PAGE = 16


def row_cases(
    dtype: torch.dtype, rows: tuple[int, int], columns: int, vocabulary: int, fp8: bool
) -> list[Case]:
    """rows: when checked, when timed. columns: a multiple of 128. fp8: with the cases whose pools are e4m3."""
    rounding = 1e-5 if dtype == torch.float32 else 5e-3
    in_fp8 = [Case("store_kv fp8", 4e-2, partial(_store_kv, dtype, rows, True))] if fp8 else []
    return [
        *in_fp8,
        Case("rmsnorm", rounding, partial(_rmsnorm, dtype, rows, columns, False)),
        Case("rmsnorm with residual", rounding, partial(_rmsnorm, dtype, rows, columns, True)),
        Case("silu_mul", rounding, partial(_silu_mul, dtype, rows, columns)),
        Case("store_kv", rounding, partial(_store_kv, dtype, rows, False)),
        Case("merge_states", rounding, partial(_merge, dtype, rows)),
        Case("relocate", rounding, partial(_relocate, dtype, rows)),
        Case("copy_pages", 0.0, partial(_copy_pages, dtype, rows)),
        # A token whose weight is a threshold's neighbour may fall on the other side of it.
        Case("sample", 0.02, partial(_sample, rows, vocabulary)),
    ]


def _randn(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)


def _rmsnorm(
    dtype: torch.dtype,
    rows: tuple[int, int],
    columns: int,
    with_residual: bool,
    generator: torch.Generator,
    timed: bool,
) -> Work:
    n = rows[timed]
    x, weight = _randn(generator, n, columns, dtype=dtype), _randn(generator, columns, dtype=dtype)
    residual = _randn(generator, n, columns, dtype=dtype) if with_residual else None
    before = None if residual is None else residual.clone()
    out = poisoned(n, columns, dtype=dtype, device=generator.device)

    def wanted() -> dict[str, torch.Tensor]:
        wide = x.cpu().double()
        if before is not None:
            # the norm is of what is stored
            wide = (wide + before.cpu().double()).to(dtype).double()
        scale = (wide.square().mean(-1, keepdim=True) + _EPS).rsqrt()
        return {"out": wide * scale * weight.cpu().double()}

    launch = rmsnorm_launch(x, weight, _EPS, residual, out)
    floor = cost.rmsnorm(n, columns, itemsize=dtype.itemsize, residual=with_residual)
    return Work(launch.run, {"out": out}, wanted, floor, size_of(x, out))


def _silu_mul(
    dtype: torch.dtype, rows: tuple[int, int], columns: int, generator: torch.Generator, timed: bool
) -> Work:
    n = rows[timed]
    gate_up = _randn(generator, n, 2 * columns, dtype=dtype)
    out = poisoned(n, columns, dtype=dtype, device=generator.device)

    def wanted() -> dict[str, torch.Tensor]:
        gate, up = gate_up.cpu().double().chunk(2, -1)
        return {"out": gate / (1 + (-gate).exp()) * up}

    floor = cost.silu_mul(n, columns, itemsize=dtype.itemsize)
    return Work(silu_mul_launch(gate_up, out).run, {"out": out}, wanted, floor, size_of(gate_up, out))


def _store_kv(
    dtype: torch.dtype, rows: tuple[int, int], fp8: bool, generator: torch.Generator, timed: bool
) -> Work:
    n, kv_heads, group, dim, device = rows[timed], 2, 4, 128, generator.device
    heads, num_pages = kv_heads * group, -(-n // _PAGE) + 3
    q, k, v = (_randn(generator, n, count, dim, dtype=dtype) for count in (heads, kv_heads, kv_heads))
    positions = torch.randint(0, 4096, (n,), generator=generator, device=device)
    slots = torch.randperm(num_pages * _PAGE, generator=generator, device=device)[:n]
    inverse = 10_000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = relocation_angles(torch.arange(4096), inverse).to(device)
    pool_dtype = FP8 if fp8 else dtype
    outputs = {
        name: poisoned(num_pages, kv_heads, _PAGE, dim, dtype=pool_dtype, device=device)
        for name in ("k", "v")
    }
    outputs["q"] = poisoned(kv_heads, n, group, dim, dtype=dtype, device=device)
    scale = torch.rand(kv_heads, generator=generator, device=device) + 0.5 if fp8 else None

    def run() -> None:
        store_kv(
            q, k, v, angles, positions, slots, outputs["q"], outputs["k"], outputs["v"],
            k_scale=scale, v_scale=scale,
        )  # fmt: skip

    def wanted() -> dict[str, torch.Tensor]:
        turn = angles.cpu().double()[positions.cpu()][:, None]
        cos, sin = turn[..., : dim // 2], turn[..., dim // 2 :]
        by = 1.0 if scale is None else scale.cpu().double()[None, :, None]
        page, offset = slots.cpu() // _PAGE, slots.cpu() % _PAGE
        pools = {name: torch.full(outputs[name].shape, torch.nan, dtype=torch.float64) for name in ("k", "v")}
        pools["k"][page, :, offset] = reference.rotate(k.cpu().double(), cos, sin) / by
        pools["v"][page, :, offset] = v.cpu().double() / by
        return pools | {"q": reference.pack_q(reference.rotate(q.cpu().double(), cos, sin), kv_heads)}

    floor = cost.store_kv(n, heads, kv_heads, dim, itemsize=dtype.itemsize, kv_itemsize=pool_dtype.itemsize)
    return Work(run, outputs, wanted, floor, size_of(q, k, v, *outputs.values()))


def _merge(dtype: torch.dtype, rows: tuple[int, int], generator: torch.Generator, timed: bool) -> Work:
    n, levels, heads, dim = rows[timed], 4, 8, 128
    partial_out, lse = _randn(generator, levels, n, heads, dim), 20 * _randn(generator, levels, n, heads)
    empty = torch.rand(lse.shape, generator=generator, device=generator.device) < 0.3
    lse[empty], partial_out[empty] = -torch.inf, torch.nan
    outputs = {
        "out": poisoned(n, heads, dim, dtype=dtype, device=generator.device),
        "lse": poisoned(n, heads, dtype=torch.float32, device=generator.device),
    }

    def wanted() -> dict[str, torch.Tensor]:
        out, total = (
            torch.empty(n, heads, dim, dtype=torch.float64),
            torch.empty(n, heads, dtype=torch.float64),
        )
        reference.merge_states(partial_out.cpu().double(), lse.cpu().double(), out, total)
        return {"out": out, "lse": total}

    def run() -> None:
        merge_states(partial_out, lse, outputs["out"], outputs["lse"])

    floor = cost.merge_states(levels, n, heads, dim, itemsize=dtype.itemsize)
    return Work(run, outputs, wanted, floor, size_of(partial_out, *outputs.values()))


def _relocate(dtype: torch.dtype, rows: tuple[int, int], generator: torch.Generator, timed: bool) -> Work:
    n, layers, kv_heads, dim, device = rows[timed], 2, 2, 128, generator.device
    num_pages = 2 * -(-n // _PAGE) + 1
    k, v = (_randn(generator, layers, num_pages, kv_heads, _PAGE, dim, dtype=dtype) for _ in range(2))
    slots = torch.randperm(num_pages * _PAGE, generator=generator, device=device)[: 2 * n]
    source, target = slots[:n].contiguous(), slots[n:].contiguous()
    for pool in (k, v):
        pool[:, target // _PAGE, :, target % _PAGE] = torch.nan
    before = k.clone(), v.clone()
    moved = torch.randint(-4096, 4096, (n,), generator=generator, device=device).cpu()
    angles = relocation_angles(moved, 10_000.0 ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim))
    on_device = angles.to(device)

    def wanted() -> dict[str, torch.Tensor]:
        pools = {"k": before[0].cpu().double(), "v": before[1].cpu().double()}
        reads, writes = (pages.cpu() for pages in (source, target))
        cos, sin = angles.double()[:, None, None, : dim // 2], angles.double()[:, None, None, dim // 2 :]
        values = pools["k"][:, reads // _PAGE, :, reads % _PAGE]
        pools["k"][:, writes // _PAGE, :, writes % _PAGE] = reference.rotate(values, cos, sin)
        pools["v"][:, writes // _PAGE, :, writes % _PAGE] = pools["v"][:, reads // _PAGE, :, reads % _PAGE]
        return pools

    def run() -> None:
        relocate(k, v, source, target, on_device)

    floor = cost.relocate(n, layers, kv_heads, dim, kv_itemsize=dtype.itemsize)
    return Work(run, {"k": k, "v": v}, wanted, floor, size_of(k, v))


def _copy_pages(dtype: torch.dtype, rows: tuple[int, int], generator: torch.Generator, timed: bool) -> Work:
    count, layers, kv_heads, dim, device = -(-rows[timed] // _PAGE), 2, 2, 128, generator.device
    source = _randn(generator, layers, count + 1, kv_heads, _PAGE, dim, dtype=dtype)
    target = poisoned(layers, count + 2, kv_heads, _PAGE, dim, dtype=dtype, device=device)
    pages = torch.randperm(count, generator=generator, device=device).int()
    tokens = torch.randint(0, _PAGE + 1, (count,), generator=generator, device=device).int()

    def wanted() -> dict[str, torch.Tensor]:
        out = torch.full(target.shape, torch.nan, dtype=torch.float64)
        reference.copy_pages(source.cpu().double(), out, pages.cpu(), pages.cpu() + 1, tokens.cpu())
        return {"target": out}

    def run() -> None:
        copy_pages(source, target, pages, pages + 1, tokens)

    floor = cost.copy_pages(
        count, int(tokens.sum()), _PAGE, layers, kv_heads, dim, kv_itemsize=dtype.itemsize
    )
    return Work(run, {"target": target}, wanted, floor, size_of(source, target))


def _sample(rows: tuple[int, int], vocabulary: int, generator: torch.Generator, timed: bool) -> Work:
    n, device = min(rows[timed], 64), generator.device
    logits = 4 * _randn(generator, n, vocabulary)
    rng = torch.Generator().manual_seed(int(logits[0, :8].abs().sum() * 1e6))
    options = {
        "temperature": torch.rand(n, generator=rng).round(decimals=1),
        "top_k": torch.randint(0, 60, (n,), generator=rng, dtype=torch.int32),
        "top_p": 0.5 + torch.rand(n, generator=rng) / 2,
        "min_p": torch.rand(n, generator=rng) / 20,
        "seeds": torch.randint(0, 2**40, (n,), generator=rng),
        "positions": torch.randint(0, 10_000, (n,), generator=rng),
    }
    out = poisoned(n, dtype=torch.int64, device=device)
    launch = sample_launch(logits, **{name: value.to(device) for name, value in options.items()}, out=out)

    def wanted() -> dict[str, torch.Tensor]:
        return {"tokens": reference.sample(logits.cpu(), **options)}

    return Work(launch.run, {"tokens": out}, wanted, cost.sample(n, vocabulary), size_of(logits))
