"""RMS norm, with the residual added first in the same pass."""

import torch
import triton
import triton.language as tl

from deeproot.kernels.launch import Launch, next_power_of_2


@triton.jit
def rmsnorm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    eps,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * COLUMNS
    c = tl.arange(0, BLOCK)
    mask = c < COLUMNS
    x = tl.load(x_ptr + row + c, mask=mask, other=0.0)
    wide = x.to(tl.float32)
    if RESIDUAL:
        wide += tl.load(residual_ptr + row + c, mask=mask, other=0.0).to(tl.float32)
        summed = wide.to(x.dtype)
        tl.store(residual_ptr + row + c, summed, mask=mask)
        # the norm of what was stored, so that the layers after see one and the same sum
        wide = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / COLUMNS + eps)
    weight = tl.load(weight_ptr + c, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + c, (wide * scale * weight).to(x.dtype), mask=mask)


def rmsnorm_launch(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None, out: torch.Tensor
) -> Launch:
    """The launch of `out = norm(x (+ residual)) * weight` over rows of x `[rows, columns]`.

    residual, if given, becomes the sum, rounded to its dtype. Raises ValueError for shapes that do not fit.
    """
    rows, columns = x.shape
    for name, tensor in (("x", x), ("residual", residual), ("out", out)):
        if tensor is not None and (
            tensor.shape != x.shape or tensor.dtype != x.dtype or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous {tuple(x.shape)} {x.dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
            )
    if weight.shape != (columns,):
        raise ValueError(f"weight must be [{columns}], got {tuple(weight.shape)}")
    block = next_power_of_2(columns)
    args = {
        "x_ptr": x,
        "residual_ptr": x if residual is None else residual,
        "weight_ptr": weight,
        "out_ptr": out,
        "eps": eps,
        "COLUMNS": columns,
        "BLOCK": block,
        "RESIDUAL": residual is not None,
    }
    # 8 values a thread are 128 bits of bf16
    return Launch(rmsnorm_kernel, (rows,), args, num_warps=min(16, max(1, block // 256)))


def rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """The norm of `x + residual` (residual updated in place), or of x alone."""
    out = torch.empty_like(x)
    rmsnorm_launch(x, weight, eps, residual, out).run()
    return out
