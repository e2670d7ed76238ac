"""Triton's interpreter made right about bf16 (test-only, itself tested in test_interpreter.py), and paged inputs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

FP8 = torch.float8_e4m3fn


def widen(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """bf16 bits as float32."""
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """float32 to bf16 bits, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@pytest.fixture(autouse=True, scope="session")
def mended_interpreter() -> Iterator[None]:
    """The interpreter keeps bf16 as a uint16: its dot multiplies those integers, its conversion cuts instead of rounds.

    Mends both, and float32 -> e4m3: rounded as torch does, but a value over 448 becomes NaN. (Torch and the hardware keep
    it to 448; nothing promises that, and a kernel that does not clamp must show.)
    """
    builder = interpreter.InterpreterBuilder
    dot, cast = builder.create_dot, builder.cast_impl

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        if tl.bfloat16 not in (a.dtype.scalar, b.dtype.scalar):
            return dot(self, a, b, d, *rest)
        left, right = (widen(x.data) if x.dtype.scalar == tl.bfloat16 else x.data for x in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right, dtype=np.float32) + d.data, d.dtype.scalar)

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            return interpreter.TensorHandle(narrow(source.data), tl.bfloat16)
        return cast(self, source, target)

    fp_to_fp = builder.create_fp_to_fp

    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.float8e4nv:
            values = torch.from_numpy(np.ascontiguousarray(source.data))
            bits = values.to(FP8).view(torch.uint8)
            # 464 is halfway to the next value that e4m3 would have; NaN also for NaN
            bits = torch.where(values.abs() <= 464.0, bits, torch.full_like(bits, 0x7F))
            return interpreter.TensorHandle(bits.numpy(), tl.float8e4nv)
        return fp_to_fp(self, source, target, rounding)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "create_dot", create_dot)
        patch.setattr(builder, "cast_impl", cast_impl)
        patch.setattr(builder, "create_fp_to_fp", create_fp_to_fp)
        for name in ("fp_trunc", "fp_ext", "si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui"):
            patch.setattr(
                builder, f"create_{name}", lambda self, source, target: self.cast_impl(source, target)
            )
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
