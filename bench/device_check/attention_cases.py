"""Paged prefill in its three forms, split decode and cascade."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from deeproot.bench.device_check.cases import Case, Work, poisoned, size_of
from deeproot.bench.device_check.paged import Paged, Shape, make_paged
from deeproot.kernels import cost, reference
from deeproot.kernels.cascade import cascade_decode, split_decode
from deeproot.kernels.configs import PrefillConfig, decode_config, prefill_config, specialised_config
from deeproot.kernels.launch import TRITON_VERSION
from deeproot.kernels.paged_prefill import paged_prefill

_SPLITS = 16


@dataclass(frozen=True, slots=True)
class Lengths:
    """(new, total) tokens of sequences."""

    prefill: list[tuple[int, int]]
    decode: list[int]


def attention_cases(
    shape: Shape, checked: Lengths, timed: Lengths, multiprocessors: int, forms: tuple[str, ...]
) -> list[Case]:
    """Cases of one shape. forms: "plain", "specialised", "decode", "cascade"; what has no configuration is left out."""
    tolerance = 1e-5 if shape.dtype == torch.float32 else 1e-2
    if shape.fp8:
        tolerance = 3e-2
    kind = f"D{shape.head_dim} page {shape.page} {'fp8' if shape.fp8 else str(shape.dtype).removeprefix('torch.')}"
    plain = prefill_config(shape.head_dim, shape.page, shape.fp8, TRITON_VERSION)
    configs = {"plain": plain, "specialised": specialised_config(shape.head_dim, shape.page)}
    cases = []
    for form in forms:
        make: Callable[[torch.Generator, bool], Work]
        if form in configs:
            config = configs[form]
            if config is None:
                continue
            make = partial(_prefill, shape, checked, timed, config, multiprocessors)
            cases.append(Case(f"prefill {config.form} {kind}", tolerance, make))
        elif form == "decode":
            make = partial(_decode, shape, checked, timed, multiprocessors)
            cases.append(Case(f"decode {kind}", tolerance, make))
        else:
            make = partial(_cascade, shape, checked, timed, plain, multiprocessors)
            cases.append(Case(f"cascade {kind}", tolerance, make))
    return cases


def _outputs(shape: Shape, tokens: int, device: torch.device) -> dict[str, torch.Tensor]:
    return {
        "out": poisoned(tokens, shape.heads, shape.head_dim, dtype=shape.dtype, device=device),
        "lse": poisoned(tokens, shape.heads, dtype=torch.float32, device=device),
    }


def _prefill(
    shape: Shape,
    checked: Lengths,
    timed: Lengths,
    config: PrefillConfig,
    multiprocessors: int,
    generator: torch.Generator,
    is_timed: bool,
) -> Work:
    lengths = timed.prefill if is_timed else checked.prefill
    paged = make_paged(shape, [new for new, _ in lengths], [total for _, total in lengths], generator)
    device = generator.device
    items = paged.prefill_items(config.block_m).to(device)
    count = torch.tensor([len(items)], dtype=torch.int32, device=device)
    outputs = _outputs(shape, sum(paged.new), device)
    options: dict[str, Any] = {"softmax_scale": shape.scale, **paged.scales}

    def run() -> None:
        paged_prefill(
            paged.q, paged.k, paged.v, paged.table, items, count, outputs["out"], outputs["lse"],
            config=config, multiprocessors=multiprocessors, **options,
        )  # fmt: skip

    floor = cost.paged_prefill(
        [(new, total - new) for new, total in lengths], shape.heads, shape.kv_heads, shape.head_dim,
        itemsize=shape.dtype.itemsize, kv_itemsize=paged.k.element_size(),
    )  # fmt: skip
    return Work(
        run, outputs, partial(_wanted, paged), floor, size_of(paged.q, paged.k, paged.v, *outputs.values())
    )


def _wanted(paged: Paged) -> dict[str, torch.Tensor]:
    """Plain attention of each sequence in float64."""
    host, shape = paged.to_cpu(), paged.shape
    tokens = sum(paged.new)
    out = torch.empty(tokens, shape.heads, shape.head_dim, dtype=torch.float64)
    lse = torch.empty(tokens, shape.heads, dtype=torch.float64)
    items = host.prefill_items(max(paged.new) * shape.group)
    reference.paged_prefill(
        host.q, host.k, host.v, host.table, items, torch.tensor([len(items)]), out, lse,
        softmax_scale=shape.scale, dtype=torch.float64, **host.scales,
    )  # fmt: skip
    return {"out": out, "lse": lse}


def _decode(
    shape: Shape,
    checked: Lengths,
    timed: Lengths,
    multiprocessors: int,
    generator: torch.Generator,
    is_timed: bool,
) -> Work:
    totals = timed.decode if is_timed else checked.decode
    paged = make_paged(shape, [1] * len(totals), totals, generator)
    buffers = _DecodeBuffers.make(paged, 0, 0, generator.device)
    config = decode_config(shape.head_dim, shape.page, shape.group, TRITON_VERSION)

    def run() -> None:
        split_decode(
            paged.q, paged.k, paged.v, paged.table, buffers.items, buffers.count, buffers.partial,
            buffers.partial_lse, buffers.used, buffers.outputs["out"], buffers.outputs["lse"],
            softmax_scale=shape.scale, config=config, multiprocessors=multiprocessors, **paged.scales,
        )  # fmt: skip

    floor = cost.paged_decode(
        totals, shape.heads, shape.kv_heads, shape.head_dim, kv_itemsize=paged.k.element_size()
    )
    return Work(run, buffers.outputs, partial(_wanted, paged), floor, size_of(paged.k, paged.v))


@dataclass(frozen=True, slots=True)
class _DecodeBuffers:
    items: torch.Tensor
    count: torch.Tensor
    partial: torch.Tensor
    partial_lse: torch.Tensor
    used: torch.Tensor
    outputs: dict[str, torch.Tensor]

    @classmethod
    def make(cls, paged: Paged, begin: int, levels: int, device: torch.device) -> "_DecodeBuffers":
        """Suffixes from token `begin` on; `levels` before those of the splits."""
        n, shape = len(paged.total), paged.shape
        partial_out = poisoned(
            levels + _SPLITS, n, shape.heads, shape.head_dim, dtype=torch.float32, device=device
        )
        return cls(
            paged.decode_items(begin).to(device),
            torch.tensor([n], dtype=torch.int32, device=device),
            partial_out,
            poisoned(*partial_out.shape[:3], dtype=torch.float32, device=device),
            poisoned(n, dtype=torch.int32, device=device),
            _outputs(shape, n, device),
        )


def _cascade(
    shape: Shape,
    checked: Lengths,
    timed: Lengths,
    config: PrefillConfig,
    multiprocessors: int,
    generator: torch.Generator,
    is_timed: bool,
) -> Work:
    """Decodes that share whole pages: nearly all of the shortest sequence."""
    totals = sorted(timed.decode if is_timed else checked.decode)[-4:]
    align = max(shape.page, config.block_n)
    shared = max((min(totals) - 1) // align * align, 0)
    paged = make_paged(shape, [1] * len(totals), totals, generator, shared // shape.page)
    device, rows = generator.device, len(totals) * shape.group
    buffers = _DecodeBuffers.make(paged, shared, 1, device)
    prefix = [
        (0, row, min(config.block_m, rows - row), row, shared, 0, shared, 0)
        for row in range(0, rows if shared else 0, config.block_m)
    ]
    prefix_items = torch.tensor(prefix, dtype=torch.int32, device=device).view(-1, 8)
    count = torch.tensor([len(prefix)], dtype=torch.int32, device=device)

    def run() -> None:
        cascade_decode(
            paged.q, paged.k, paged.v, paged.table, prefix_items, count, buffers.items, buffers.count,
            buffers.partial, buffers.partial_lse, buffers.used, buffers.outputs["out"], buffers.outputs["lse"],
            prefix_levels=1, softmax_scale=shape.scale, prefix_config=config, multiprocessors=multiprocessors,
            config=decode_config(shape.head_dim, shape.page, shape.group, TRITON_VERSION), **paged.scales,
        )  # fmt: skip

    floor = cost.cascade(
        shared, [total - shared for total in totals], shape.heads, shape.kv_heads, shape.head_dim,
        kv_itemsize=paged.k.element_size(),
    )  # fmt: skip
    return Work(run, buffers.outputs, partial(_wanted, paged), floor, size_of(paged.k, paged.v))
