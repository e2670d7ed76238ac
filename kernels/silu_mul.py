"""The gated activation of an MLP: silu(gate) * up, from one matrix that holds both."""

import torch
import triton
import triton.language as tl

from deeproot.kernels.launch import Launch, cdiv


@triton.jit
def silu_mul_kernel(in_ptr, out_ptr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < COLUMNS
    gate = tl.load(in_ptr + row * (2 * COLUMNS) + c, mask=mask, other=0.0)
    up = tl.load(in_ptr + row * (2 * COLUMNS) + COLUMNS + c, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    out = wide / (1.0 + tl.exp2(wide * -1.4426950408889634)) * up.to(tl.float32)
    tl.store(out_ptr + row * COLUMNS + c, out.to(gate.dtype), mask=mask)


def silu_mul_launch(gate_up: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch of `out = silu(gate) * up`: gate_up `[rows, 2 * columns]`, gate first; out `[rows, columns]`.

    Raises ValueError for shapes that do not fit.
    """
    rows, columns = out.shape
    if gate_up.shape != (rows, 2 * columns) or gate_up.dtype != out.dtype:
        raise ValueError(
            f"gate_up must be [{rows}, {2 * columns}] {out.dtype}, got {tuple(gate_up.shape)} {gate_up.dtype}"
        )
    if not gate_up.is_contiguous() or not out.is_contiguous():
        raise ValueError("gate_up and out must be contiguous")
    block = 1024
    args = {"in_ptr": gate_up, "out_ptr": out, "COLUMNS": columns, "BLOCK": block}
    return Launch(silu_mul_kernel, (rows, cdiv(columns, block)), args, num_warps=4)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of gate_up `[rows, 2 * columns]`."""
    out = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
    silu_mul_launch(gate_up, out).run()
    return out
