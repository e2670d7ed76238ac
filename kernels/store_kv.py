"""From a layer's q, k and v to attention's inputs in one pass: QK norm, rotary embedding, packing of q, write of K and V.

A program takes rows of (token, head) pairs, so that any number of heads fills it and every access is 128 bits wide.
A row is held as its two halves, which rotary embedding turns into each other.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from deeproot.kernels.checks import FP8
from deeproot.kernels.launch import Launch, cdiv, next_power_of_2


@triton.jit
def _halves(x, row, H: tl.constexpr, D: tl.constexpr, stride, mask, c):
    """The two halves of rows `row` = (token, head) of x, float32."""
    at = (row // H).to(tl.int64) * stride + (row % H) * D
    left = tl.load(x + at[:, None] + c[None, :], mask=mask, other=0.0)
    right = tl.load(x + at[:, None] + (D // 2) + c[None, :], mask=mask, other=0.0)
    return left.to(tl.float32), right.to(tl.float32)


@triton.jit
def _norm(left, right, weight, eps, D: tl.constexpr, c, c_mask):
    scale = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)
    w_left = tl.load(weight + c, mask=c_mask, other=0.0).to(tl.float32)
    w_right = tl.load(weight + (D // 2) + c, mask=c_mask, other=0.0).to(tl.float32)
    return left * scale[:, None] * w_left[None, :], right * scale[:, None] * w_right[None, :]


@triton.jit
def _turn(left, right, cos_sin, position, D: tl.constexpr, mask, c):
    at = position[:, None] * D + c[None, :]
    cos = tl.load(cos_sin + at, mask=mask, other=0.0)
    sin = tl.load(cos_sin + at + (D // 2), mask=mask, other=0.0)
    return left * cos - right * sin, right * cos + left * sin


@triton.jit
def _cached(x, scale, FP8: tl.constexpr):
    """x as the pool keeps it; e4m3 has no infinity, and a value over 448 would become NaN."""
    if FP8:
        x = tl.minimum(tl.maximum(x / scale[:, None], -448.0), 448.0)
    return x


@triton.jit
def _slot_rows(slot, head, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):
    return ((slot // PAGE * KV_HEADS + head) * PAGE + slot % PAGE) * D


@triton.jit
def store_kv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    cos_sin_ptr,
    positions_ptr,
    slots_ptr,
    q_out_ptr,
    k_pool_ptr,
    v_pool_ptr,
    q_weight_ptr,
    k_weight_ptr,
    k_scale_ptr,
    v_scale_ptr,
    eps,
    tokens,
    q_stride,
    k_stride,
    v_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    NORM: tl.constexpr,
    FP8: tl.constexpr,
):
    pid = tl.program_id(0)
    q_programs = tl.cdiv(tokens * (KV_HEADS * GROUP), ROWS)
    kv_programs = tl.cdiv(tokens * KV_HEADS, ROWS)
    c = tl.arange(0, HALF)
    c_mask = c < D // 2
    if pid < q_programs:
        HEADS: tl.constexpr = KV_HEADS * GROUP
        row = pid * ROWS + tl.arange(0, ROWS)
        live = row < tokens * HEADS
        mask = live[:, None] & c_mask[None, :]
        left, right = _halves(q_ptr, row, HEADS, D, q_stride, mask, c)
        if NORM:
            left, right = _norm(left, right, q_weight_ptr, eps, D, c, c_mask)
        position = tl.load(positions_ptr + row // HEADS, mask=live, other=0)
        left, right = _turn(left, right, cos_sin_ptr, position, D, mask, c)
        head = row % HEADS
        packed = (head // GROUP * tokens + row // HEADS) * GROUP + head % GROUP
        at = packed.to(tl.int64)[:, None] * D + c[None, :]
        tl.store(q_out_ptr + at, left.to(q_out_ptr.dtype.element_ty), mask=mask)
        tl.store(q_out_ptr + at + (D // 2), right.to(q_out_ptr.dtype.element_ty), mask=mask)
    else:
        is_key = pid < q_programs + kv_programs
        row = (pid - q_programs) * ROWS + tl.arange(0, ROWS)
        if not is_key:
            row -= kv_programs * ROWS
        live = row < tokens * KV_HEADS
        mask = live[:, None] & c_mask[None, :]
        head = row % KV_HEADS
        slot = tl.load(slots_ptr + row // KV_HEADS, mask=live, other=0)
        at = _slot_rows(slot, head, KV_HEADS, PAGE, D)[:, None] + c[None, :]
        if is_key:
            left, right = _halves(k_ptr, row, KV_HEADS, D, k_stride, mask, c)
            if NORM:
                left, right = _norm(left, right, k_weight_ptr, eps, D, c, c_mask)
            position = tl.load(positions_ptr + row // KV_HEADS, mask=live, other=0)
            left, right = _turn(left, right, cos_sin_ptr, position, D, mask, c)
            scale = tl.load(k_scale_ptr + head, mask=live, other=1.0) if FP8 else eps
            pool = k_pool_ptr
            tl.store(pool + at, _cached(left, scale, FP8).to(pool.dtype.element_ty), mask=mask)
            tl.store(pool + at + (D // 2), _cached(right, scale, FP8).to(pool.dtype.element_ty), mask=mask)
        else:
            left, right = _halves(v_ptr, row, KV_HEADS, D, v_stride, mask, c)
            scale = tl.load(v_scale_ptr + head, mask=live, other=1.0) if FP8 else eps
            pool = v_pool_ptr
            tl.store(pool + at, _cached(left, scale, FP8).to(pool.dtype.element_ty), mask=mask)
            tl.store(pool + at + (D // 2), _cached(right, scale, FP8).to(pool.dtype.element_ty), mask=mask)


def store_kv_launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    q_packed: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    *,
    q_weight: torch.Tensor | None = None,
    k_weight: torch.Tensor | None = None,
    eps: float = 1e-6,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> Launch:
    """The launch of norm, rotary embedding and cache write.

    q `[tokens, heads, head_dim]`, k and v `[tokens, kv_heads, head_dim]`: heads of a token in one piece, tokens at any
    stride (slices of one fused projection). cos_sin: float32 `[positions, head_dim]`, cosines in the left half; made
    on the host, since cos and sin in a kernel spill. positions, slot_mapping: int64 `[tokens]`. q_packed
    `[kv_heads, tokens, group, head_dim]` receives q; the pools `[pages, kv_heads, page, head_dim]` receive k and v, in
    their own dtype, or e4m3 over a float32 `[kv_heads]` scale, clamped. q_weight and k_weight `[head_dim]`: RMS norm
    of each head before the rotation. Raises ValueError for tensors that do not fit.
    """
    tokens, heads, dim = q.shape
    kv_heads, page = k_pool.shape[1], k_pool.shape[2]
    if k.shape != (tokens, kv_heads, dim) or v.shape != k.shape or k_pool.shape[3] != dim:
        raise ValueError(
            f"k and v must be [{tokens}, {kv_heads}, {dim}], got {tuple(k.shape)}, {tuple(v.shape)}"
        )
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.stride(2) != 1 or x.stride(1) != dim:
            raise ValueError(f"{name}: the heads of a token must lie in one piece, got strides {x.stride()}")
    if q_packed.shape != (kv_heads, tokens, heads // kv_heads, dim) or not q_packed.is_contiguous():
        raise ValueError(
            f"q_packed must be contiguous [{kv_heads}, {tokens}, group, {dim}], got {tuple(q_packed.shape)}"
        )
    if cos_sin.dtype != torch.float32 or cos_sin.shape[1] != dim or not cos_sin.is_contiguous():
        raise ValueError(
            f"cos_sin must be contiguous float32 [positions, {dim}], got {cos_sin.dtype} {tuple(cos_sin.shape)}"
        )
    if (q_weight is None) != (k_weight is None):
        raise ValueError("q_weight and k_weight come together or not at all")
    fp8 = k_pool.dtype == FP8
    if fp8 and (k_scale is None or v_scale is None):
        raise ValueError("k_scale and v_scale are needed for e4m3 pools")
    half = next_power_of_2(dim // 2)
    # 16 bytes a thread of the narrowest store
    rows = (2048 if fp8 else 1024) // half
    group = heads // kv_heads
    args = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "cos_sin_ptr": cos_sin,
        "positions_ptr": positions,
        "slots_ptr": slot_mapping,
        "q_out_ptr": q_packed,
        "k_pool_ptr": k_pool,
        "v_pool_ptr": v_pool,
        "q_weight_ptr": cos_sin if q_weight is None else q_weight,
        "k_weight_ptr": cos_sin if k_weight is None else k_weight,
        "k_scale_ptr": k_scale if fp8 else cos_sin,
        "v_scale_ptr": v_scale if fp8 else cos_sin,
        "eps": eps,
        "tokens": tokens,
        "q_stride": q.stride(0),
        "k_stride": k.stride(0),
        "v_stride": v.stride(0),
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "D": dim,
        "HALF": half,
        "PAGE": page,
        "ROWS": rows,
        "NORM": q_weight is not None,
        "FP8": fp8,
    }
    programs = cdiv(tokens * heads, rows) + 2 * cdiv(tokens * kv_heads, rows)
    return Launch(store_kv_kernel, (programs,), args, num_warps=4)


def store_kv(*args: Any, **kwargs: Any) -> None:
    """Run what `store_kv_launch` makes of the same arguments."""
    store_kv_launch(*args, **kwargs).run()
