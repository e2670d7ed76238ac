"""Triton's interpreter made right about bf16 and e4m3 (test-only, itself tested in kernels/test_interpreter.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
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
