"""Sequences in a shuffled paged pool, on the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads, pages and dtypes."""

    kv_heads: int
    group: int
    head_dim: int
    page: int
    dtype: torch.dtype
    fp8: bool = False
    """K and V in e4m3."""

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


@dataclass(frozen=True, slots=True)
class Paged:
    """The last `new[i]` of `total[i]` tokens of sequence `i` are new."""

    shape: Shape
    new: list[int]
    total: list[int]
    q: torch.Tensor
    """`[kv_heads, tokens, group, head_dim]`"""
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    scales: dict[str, Any]
    """k_scale and v_scale as kernels take them; empty if K and V are not e4m3."""

    def prefill_items(self, block_m: int) -> torch.Tensor:
        """The work list of `prefill_launch`, `[items, 8]` on the CPU, longest first."""
        items, start = [], 0
        for seq, (new, total) in enumerate(zip(self.new, self.total, strict=True)):
            for offset in range(0, new * self.shape.group, block_m):
                rows = min(block_m, new * self.shape.group - offset)
                row = start * self.shape.group + offset
                items.append((seq, row, rows, offset, total - new, 0, total, 0))
            start += new
        items.sort(key=lambda item: -(item[4] + item[3]))
        return torch.tensor(items, dtype=torch.int32)

    def decode_items(self, begin: int = 0) -> torch.Tensor:
        """The work list of `decode_launch` from token `begin` on, `[sequences, 4]` on the CPU."""
        return torch.tensor([(i, i, begin, total) for i, total in enumerate(self.total)], dtype=torch.int32)

    def to_cpu(self) -> "Paged":
        scales = {name: scale.cpu() for name, scale in self.scales.items()}
        return Paged(
            self.shape,
            self.new,
            self.total,
            self.q.cpu(),
            self.k.cpu(),
            self.v.cpu(),
            self.table.cpu(),
            scales,
        )


def make_paged(
    shape: Shape, new: Sequence[int], total: Sequence[int], generator: torch.Generator, shared: int = 0
) -> Paged:
    """Random sequences. Free pages hold NaN, unused slots of live pages large numbers.

    shared: how many first pages all sequences have in common.
    """
    device, page = generator.device, shape.page
    counts = [-(-n // page) for n in total]
    num_pages = shared + sum(count - shared for count in counts) + 2
    pages = torch.randperm(num_pages, generator=generator, device=device).int()
    table = torch.full((len(counts), max(counts)), int(pages[-1]), dtype=torch.int32, device=device)
    table[:, :shared] = pages[:shared]
    taken = shared
    for seq, count in enumerate(counts):
        table[seq, shared:count] = pages[taken : taken + count - shared]
        taken += count - shared
    pools = [_pool(shape, num_pages, generator) for _ in range(2)]
    for pool in pools:
        values = pool.view(torch.uint8) if shape.fp8 else pool
        values[pages[taken:].long()] = 0x7F if shape.fp8 else float("nan")
        for seq, (count, tokens) in enumerate(zip(counts, total, strict=True)):
            if tokens % page:
                last = int(table[seq, count - 1])
                # 0x7E is e4m3's largest number
                values[last, :, tokens % page :] = 0x7E if shape.fp8 else 1.0e4
    q = torch.randn(shape.kv_heads, sum(new), shape.group, shape.head_dim, generator=generator, device=device)
    scales: dict[str, Any] = {}
    if shape.fp8:
        for name in ("k_scale", "v_scale"):
            scales[name] = torch.rand(shape.kv_heads, generator=generator, device=device) + 0.5
    return Paged(shape, list(new), list(total), q.to(shape.dtype), pools[0], pools[1], table, scales)


def _pool(shape: Shape, num_pages: int, generator: torch.Generator) -> torch.Tensor:
    size = (num_pages, shape.kv_heads, shape.page, shape.head_dim)
    values = torch.randn(size, generator=generator, device=generator.device, dtype=torch.float32)
    return values.to(FP8 if shape.fp8 else shape.dtype)
