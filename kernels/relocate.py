"""A run of cached tokens at new positions: keys rotated by the difference, values copied.

Always from the original page: a key that is rotated twice is rounded twice.
"""

import torch
import triton
import triton.language as tl

from deeproot.kernels.checks import FP8
from deeproot.kernels.launch import Launch, cdiv, next_power_of_2


@triton.jit
def relocate_kernel(
    k_ptr,
    v_ptr,
    source_ptr,
    target_ptr,
    cos_sin_ptr,
    tokens,
    layer_stride,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    FP8: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64) * layer_stride
    c = tl.arange(0, HALF)
    token = row // KV_HEADS
    head = row % KV_HEADS
    live = token < tokens
    mask = live[:, None] & (c < D // 2)[None, :]
    source = tl.load(source_ptr + token, mask=live, other=0)
    target = tl.load(target_ptr + token, mask=live, other=0)
    at = ((source // PAGE * KV_HEADS + head) * PAGE + source % PAGE)[:, None] * D + c[None, :] + layer
    to = ((target // PAGE * KV_HEADS + head) * PAGE + target % PAGE)[:, None] * D + c[None, :] + layer
    angle = token[:, None] * D + c[None, :]
    cos = tl.load(cos_sin_ptr + angle, mask=mask, other=0.0)
    sin = tl.load(cos_sin_ptr + angle + (D // 2), mask=mask, other=0.0)
    left = tl.load(k_ptr + at, mask=mask, other=0.0)
    right = tl.load(k_ptr + at + (D // 2), mask=mask, other=0.0)
    wide_left = left.to(tl.float32)
    wide_right = right.to(tl.float32)
    new_left = wide_left * cos - wide_right * sin
    new_right = wide_right * cos + wide_left * sin
    if FP8:
        # a rotation can lengthen one component by sqrt(2)
        new_left = tl.minimum(tl.maximum(new_left, -448.0), 448.0)
        new_right = tl.minimum(tl.maximum(new_right, -448.0), 448.0)
    tl.store(k_ptr + to, new_left.to(left.dtype), mask=mask)
    tl.store(k_ptr + to + (D // 2), new_right.to(left.dtype), mask=mask)
    v_left = tl.load(v_ptr + at, mask=mask, other=0.0)
    v_right = tl.load(v_ptr + at + (D // 2), mask=mask, other=0.0)
    tl.store(v_ptr + to, v_left, mask=mask)
    tl.store(v_ptr + to + (D // 2), v_right, mask=mask)


def relocation_angles(moved: torch.Tensor, inverse_frequencies: torch.Tensor) -> torch.Tensor:
    """cos and sin of each token's move, float32 `[tokens, head_dim]` (cosines left), taken in float64.

    moved: new minus old position, int64 `[tokens]`; inverse_frequencies `[head_dim / 2]`, radians a position.
    """
    angles = moved.to(torch.float64)[:, None] * inverse_frequencies.to(torch.float64)[None, :]
    return torch.cat((angles.cos(), angles.sin()), -1).to(torch.float32)


def relocate_launch(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    cos_sin: torch.Tensor,
) -> Launch:
    """The launch that moves tokens between slots in every layer.

    Pools `[layers, pages, kv_heads, page, head_dim]`; source and target: int64 slots `[tokens]`, of which none of
    target may be one of source; cos_sin from `relocation_angles`. In fp8 pools a key keeps its scale and is clamped.
    Raises ValueError for tensors that do not fit.
    """
    if (
        k_pool.dim() != 5
        or not k_pool.is_contiguous()
        or v_pool.shape != k_pool.shape
        or not v_pool.is_contiguous()
    ):
        raise ValueError(
            f"k_pool and v_pool must be alike and contiguous [layers, pages, kv_heads, page, head_dim], got {tuple(k_pool.shape)}"
        )
    layers, _, kv_heads, page, dim = k_pool.shape
    tokens = source.shape[0]
    if source.dtype != torch.int64 or target.dtype != torch.int64 or target.shape != source.shape:
        raise ValueError(
            f"source and target must be int64 slots of one length, got {source.dtype} {target.dtype}"
        )
    if cos_sin.shape != (tokens, dim) or cos_sin.dtype != torch.float32 or not cos_sin.is_contiguous():
        raise ValueError(
            f"cos_sin must be contiguous float32 [{tokens}, {dim}], got {cos_sin.dtype} {tuple(cos_sin.shape)}"
        )
    half = next_power_of_2(dim // 2)
    # 16 bytes a thread, in fp8 pools too
    rows = (2048 if k_pool.dtype == FP8 else 1024) // half
    args = {
        "k_ptr": k_pool,
        "v_ptr": v_pool,
        "source_ptr": source,
        "target_ptr": target,
        "cos_sin_ptr": cos_sin,
        "tokens": tokens,
        "layer_stride": k_pool.stride(0),
        "KV_HEADS": kv_heads,
        "D": dim,
        "HALF": half,
        "PAGE": page,
        "ROWS": rows,
        "FP8": k_pool.dtype == FP8,
    }
    return Launch(relocate_kernel, (cdiv(tokens * kv_heads, rows), layers), args, num_warps=4)


def relocate(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    cos_sin: torch.Tensor,
) -> None:
    """Run what `relocate_launch` makes of the same arguments."""
    relocate_launch(k_pool, v_pool, source, target, cos_sin).run()
