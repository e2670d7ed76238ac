"""Every configuration that ships, as launches over tensors that have shapes and no memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from deeproot.kernels.cascade import merge_launch
from deeproot.kernels.configs import PrefillConfig, Version, decode_config, prefill_config, specialised_config
from deeproot.kernels.copy_pages import copy_pages_launch
from deeproot.kernels.launch import Launch
from deeproot.kernels.paged_decode import decode_launch
from deeproot.kernels.paged_prefill import prefill_launch
from deeproot.kernels.relocate import relocate_launch
from deeproot.kernels.rmsnorm import rmsnorm_launch
from deeproot.kernels.sample import sample_launch
from deeproot.kernels.silu_mul import silu_mul_launch
from deeproot.kernels.store_kv import store_kv_launch

Phase = Literal["prefill", "decode", "merge", "write", "row"]

HEADS, KV_HEADS = 32, 8
TOKENS, SEQUENCES, CAPACITY = 1021, 15, 37
"""Not divisible by 16: what must be wide must not be so by luck."""
PAGES = 333
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Case:
    """One configuration: its launch, and what its machine code must hold."""

    name: str
    phase: Phase
    build: Callable[[], Launch]
    matrix: str = ""
    """The matrix instruction that must be there: hgmma, qgmma, hmma."""
    loads: str = ""
    """How KV must come in the hot loop: tma; async (all by LDGSTS of 128 bits); wide (K by those, V by 128-bit loads into
    registers a tile ahead, which is how Triton pipelines a gathered V that is converted and turned)."""
    specialised: bool = False
    tile: tuple[int, int, int] | None = None
    """Rows, KV tokens and head dim of one pass of the hot loop."""
    kv_bytes: int = 2
    gate_f: int | None = None
    gate_rate: float | None = None


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _int(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return _empty(*shape, dtype=dtype)


def _pools(dim: int, page: int, fp8: bool, kv_heads: int = KV_HEADS) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = FP8 if fp8 else torch.bfloat16
    return _empty(PAGES, kv_heads, page, dim, dtype=dtype), _empty(PAGES, kv_heads, page, dim, dtype=dtype)


def _scales(fp8: bool, kv_heads: int = KV_HEADS) -> dict[str, Any]:
    one = _empty(kv_heads, dtype=torch.float32) if fp8 else None
    return {"k_scale": one, "v_scale": one}


def _prefill(
    dim: int, page: int, fp8: bool, group: int, config: PrefillConfig, options: dict[str, Any]
) -> Launch:
    k_pool, v_pool = _pools(dim, page, fp8)
    q = _empty(KV_HEADS, TOKENS, group, dim)
    out, lse = _empty(TOKENS, KV_HEADS * group, dim), _empty(TOKENS, KV_HEADS * group, dtype=torch.float32)
    return prefill_launch(
        q, k_pool, v_pool, _int(SEQUENCES, 131), _int(CAPACITY, 8), _int(1), out, lse,
        softmax_scale=dim**-0.5, config=config, **_scales(fp8), **options,
    )  # fmt: skip


def _decode(dim: int, page: int, fp8: bool, group: int, options: dict[str, Any]) -> Launch:
    k_pool, v_pool = _pools(dim, page, fp8)
    heads = KV_HEADS * group
    partial_out = _empty(64, SEQUENCES, heads, dim, dtype=torch.float32)
    return decode_launch(
        _empty(KV_HEADS, TOKENS, group, dim), k_pool, v_pool, _int(SEQUENCES, 131), _int(SEQUENCES, 4), _int(1),
        partial_out, _empty(64, SEQUENCES, heads, dtype=torch.float32), _int(SEQUENCES),
        softmax_scale=dim**-0.5, **_scales(fp8), **options,
    )  # fmt: skip


def _merge(dim: int, decode: bool) -> Launch:
    lists: dict[str, Any] = (
        {"used": _int(SEQUENCES), "items": _int(SEQUENCES, 4), "num_items": _int(1)} if decode else {}
    )
    return merge_launch(
        _empty(16, SEQUENCES, HEADS, dim, dtype=torch.float32), _empty(16, SEQUENCES, HEADS, dtype=torch.float32),
        _empty(TOKENS, HEADS, dim), _empty(TOKENS, HEADS, dtype=torch.float32), base_levels=3, **lists,
    )  # fmt: skip


def _store(dim: int, fp8: bool, norm: bool) -> Launch:
    k_pool, v_pool = _pools(dim, 64, fp8)
    fused = _empty(TOKENS, (HEADS + 2 * KV_HEADS) * dim)
    parts = fused.split_with_sizes([HEADS * dim, KV_HEADS * dim, KV_HEADS * dim], 1)
    q, k, v = (part.view(TOKENS, -1, dim) for part in parts)
    weights: dict[str, Any] = {"q_weight": _empty(dim), "k_weight": _empty(dim)} if norm else {}
    return store_kv_launch(
        q, k, v, _empty(4096, dim, dtype=torch.float32), _int(TOKENS, dtype=torch.int64), _int(TOKENS, dtype=torch.int64),
        _empty(KV_HEADS, TOKENS, HEADS // KV_HEADS, dim), k_pool, v_pool, **weights, **_scales(fp8),
    )  # fmt: skip


def _relocate(fp8: bool) -> Launch:
    dtype = FP8 if fp8 else torch.bfloat16
    pools = [_empty(5, PAGES, KV_HEADS, 64, 128, dtype=dtype) for _ in range(2)]
    slots = _int(TOKENS, dtype=torch.int64)
    return relocate_launch(pools[0], pools[1], slots, slots, _empty(TOKENS, 128, dtype=torch.float32))


def _copy() -> Launch:
    pool, pages = _empty(5, PAGES, KV_HEADS, 64, 128), _int(CAPACITY)
    return copy_pages_launch(pool, pool, pages, pages, pages)


def _sample(dtype: torch.dtype) -> Launch:
    rows = {name: _empty(SEQUENCES, dtype=torch.float32) for name in ("temperature", "top_p", "min_p")}
    wide = {name: _int(SEQUENCES, dtype=torch.int64) for name in ("seeds", "positions", "out")}
    return sample_launch(_empty(SEQUENCES, 32000, dtype=dtype), top_k=_int(SEQUENCES), **rows, **wide)


# F and rate that the machine code must reach on Triton 3.9, by (form, head dim, page)
GATES_F: dict[tuple[str, int, int], int] = {
    ("descriptor", 64, 128): 1070, ("descriptor", 64, 64): 970, ("descriptor", 128, 128): 1950,
    ("descriptor", 128, 64): 1400, ("descriptor", 256, 64): 2200,
    ("specialised", 64, 128): 870, ("specialised", 64, 64): 730, ("specialised", 128, 128): 1600,
    ("specialised", 128, 64): 1270, ("specialised", 256, 64): 1950,
    ("gather", 64, 16): 940, ("gather", 128, 16): 1290, ("gather", 256, 16): 1230,
}  # fmt: skip
GATES_RATE: dict[tuple[bool, int, int], float] = {
    (False, 64, 16): 0.21, (False, 64, 64): 0.21, (False, 128, 16): 0.19, (False, 128, 64): 0.14,
    (False, 256, 16): 0.16, (False, 256, 64): 0.08,
    (True, 64, 16): 0.49, (True, 64, 64): 0.49, (True, 128, 16): 0.45, (True, 128, 64): 0.36,
    (True, 256, 16): 0.36, (True, 256, 64): 0.25,
}  # fmt: skip

_VARIANTS: dict[str, dict[str, Any]] = {
    "window": {"window": 4096},
    "soft_cap": {"soft_cap": 50.0},
    "window soft_cap": {"window": 4096, "soft_cap": 50.0},
}


def _prefill_case(
    dim: int, page: int, fp8: bool, config: PrefillConfig, group: int = 4, variant: str = ""
) -> Case:
    kind = "specialised" if config.form == "specialised" else "plain"
    extra = f" {variant}" if variant else ""
    extra += f" group {group}" if group != 4 else ""
    gated = not fp8 and not variant
    return Case(
        f"prefill {kind} D{dim} page {page} {'fp8' if fp8 else 'bf16'}{extra}",
        "prefill",
        partial(_prefill, dim, page, fp8, group, config, _VARIANTS.get(variant, {})),
        matrix="qgmma" if fp8 else "hgmma",
        loads="async" if config.form == "gather" else "tma",
        specialised=config.form == "specialised",
        tile=(config.block_m, config.block_n, dim),
        kv_bytes=1 if fp8 else 2,
        gate_f=GATES_F.get((config.form, dim, page)) if gated else None,
    )


def _decode_case(dim: int, page: int, fp8: bool, version: Version, group: int = 4, variant: str = "") -> Case:
    config = decode_config(dim, page, group, version)
    extra = f" {variant}" if variant else ""
    extra += f" group {group}" if group != 4 else ""
    options = {"split_tokens": 512} if variant == "fixed splits" else _VARIANTS.get(variant, {})
    gated = group == 4 and not variant
    return Case(
        f"decode D{dim} page {page} {'fp8' if fp8 else 'bf16'}{extra}",
        "decode",
        partial(_decode, dim, page, fp8, group, options),
        matrix="qgmma" if fp8 else "hgmma",
        loads="tma" if config.form == "descriptor" else "wide" if fp8 else "async",
        tile=(config.block_h, config.block_n, dim),
        kv_bytes=1 if fp8 else 2,
        gate_rate=GATES_RATE.get((fp8, dim, page)) if gated else None,
    )


def _attention_cases(version: Version) -> Iterator[Case]:
    for dim in (64, 96, 128, 256):
        for page in (16, 64, 128):
            for fp8 in (False, True):
                yield _prefill_case(dim, page, fp8, prefill_config(dim, page, fp8, version))
                yield _decode_case(dim, page, fp8, version)
            if config := specialised_config(dim, page):
                yield _prefill_case(dim, page, False, config)
    plain = prefill_config(128, 64, False, version)
    specialised = specialised_config(128, 128)
    assert specialised is not None
    yield _prefill_case(128, 32, False, prefill_config(128, 32, False, version))
    yield _decode_case(128, 32, False, version)
    for variant in _VARIANTS:
        yield _prefill_case(128, 64, False, plain, variant=variant)
        yield _decode_case(128, 64, False, version, variant=variant)
    for variant in ("window", "soft_cap"):
        yield _prefill_case(128, 128, False, specialised, variant=variant)
    for group in (1, 3, 7, 16):
        yield _prefill_case(128, 64, False, plain, group=group)
        yield _decode_case(128, 64, False, version, group=group)
    yield _prefill_case(128, 128, False, specialised, group=3)
    yield _decode_case(128, 64, True, version, group=16)
    yield _decode_case(128, 64, False, version, variant="fixed splits")


def cases(version: Version) -> list[Case]:
    """All cases for a version of Triton; their names are the keys of budgets.json."""
    found = list(_attention_cases(version))
    for dim in (64, 96, 128, 256):
        found += [
            Case(f"merge D{dim} of splits", "merge", partial(_merge, dim, True)),
            Case(f"store_kv D{dim} bf16", "write", partial(_store, dim, False, False)),
            Case(f"store_kv D{dim} fp8", "write", partial(_store, dim, True, False)),
        ]
    found.append(Case("merge D128 of levels", "merge", partial(_merge, 128, False)))
    found.append(Case("store_kv D128 bf16 norm", "write", partial(_store, 128, False, True)))
    found.append(Case("relocate D128 bf16", "row", partial(_relocate, False)))
    found.append(Case("relocate D128 fp8", "row", partial(_relocate, True)))
    found.append(Case("copy_pages", "row", _copy))
    found.append(Case("sample float32", "row", partial(_sample, torch.float32)))
    found.append(Case("sample bf16", "row", partial(_sample, torch.bfloat16)))
    x, weight = _empty(TOKENS, 4096), _empty(4096)
    found.append(Case("rmsnorm 4096", "row", partial(rmsnorm_launch, x, weight, 1e-6, None, x)))
    found.append(Case("rmsnorm 4096 residual", "row", partial(rmsnorm_launch, x, weight, 1e-6, x, x)))
    found.append(
        Case("silu_mul 14336", "row", partial(silu_mul_launch, _empty(TOKENS, 28672), _empty(TOKENS, 14336)))
    )
    return found
