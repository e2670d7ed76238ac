"""Paged inputs, and an interpreter that computes them rightly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from mended_interpreter import mended_interpreter

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True, scope="session")
def right_numbers() -> Iterator[None]:
    with mended_interpreter():
        yield


@dataclass
class Paged:
    """Sequences in a shuffled paged pool: the last `new[i]` of `total[i]` tokens of sequence i are new."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    new: list[int]
    total: list[int]
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @property
    def group(self) -> int:
        return self.q.shape[2]

    def scales(self) -> dict[str, torch.Tensor | None]:
        return {"k_scale": self.k_scale, "v_scale": self.v_scale}

    def prefill_items(self, block_m: int, spare: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
        """The work list, longest first, with spare items of nonsense past its length."""
        items, start = [], 0
        for seq, (new, total) in enumerate(zip(self.new, self.total, strict=True)):
            for offset in range(0, new * self.group, block_m):
                rows = min(block_m, new * self.group - offset)
                items.append((seq, start * self.group + offset, rows, offset, total - new, 0, total, 0))
            start += new
        items.sort(key=lambda item: -(item[4] + item[3]))
        nonsense = [(10_000, 77_777, 99, 5, 123_456, 7, 999_999, 3)] * spare
        return torch.tensor(items + nonsense, dtype=torch.int32), torch.tensor(
            [len(items)], dtype=torch.int32
        )

    def decode_items(self, spare: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """One item a sequence: its last token."""
        last = np.cumsum(self.new) - 1
        items = [(seq, int(last[seq]), 0, total) for seq, total in enumerate(self.total)]
        nonsense = [(10_000, 77_777, 0, 999_999)] * spare
        return torch.tensor(items + nonsense, dtype=torch.int32), torch.tensor(
            [len(items)], dtype=torch.int32
        )


@pytest.fixture(scope="session")
def make_paged() -> Callable[..., Paged]:
    """A builder of `Paged`. Free pages and the table's tail hold NaN, unused slots of live pages 1e4 (fp8: 448)."""

    def make(
        new: list[int],
        total: list[int],
        *,
        kv_heads: int = 1,
        group: int = 1,
        head_dim: int = 64,
        page: int = 16,
        dtype: torch.dtype = torch.float32,
        fp8: bool = False,
        seed: int = 0,
    ) -> Paged:
        rng = torch.Generator().manual_seed(seed)
        counts = [-(-n // page) for n in total]
        num_pages = sum(counts) + 4
        shuffled = torch.randperm(num_pages, generator=rng)
        foreign = int(shuffled[-1])
        table = torch.full((len(total), max(counts) + 8), foreign, dtype=torch.int32)
        shape = (num_pages, kv_heads, page, head_dim)
        cache = FP8 if fp8 else dtype
        pools = [torch.full(shape, float("nan")).to(cache) for _ in range(2)]
        taken = 0
        for seq, (tokens, count) in enumerate(zip(total, counts, strict=True)):
            pages = shuffled[taken : taken + count]
            taken += count
            table[seq, :count] = pages.int()
            for pool in pools:
                values = torch.full((count * page, kv_heads, head_dim), 448.0 if fp8 else 1.0e4)
                values[:tokens] = torch.randn(tokens, kv_heads, head_dim, generator=rng)
                pool[pages] = values.view(count, page, kv_heads, head_dim).transpose(1, 2).to(cache)
        q = torch.randn(kv_heads, sum(new), group, head_dim, generator=rng).to(dtype)
        scale = torch.rand(2, kv_heads, generator=rng) + 0.5 if fp8 else (None, None)
        return Paged(q, pools[0], pools[1], table, new, total, scale[0], scale[1])

    return make


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is wanted, in float64; NaN anywhere gives NaN."""
    difference = (got.double() - wanted.double()).norm()
    return float(difference / wanted.double().norm().clamp(min=1e-30))


@pytest.fixture(scope="session")
def error() -> Callable[[torch.Tensor, torch.Tensor], float]:
    return relative_error
