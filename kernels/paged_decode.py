"""Attention of one new token a sequence over paged K and V: splits of the KV range, merged by their LSE.

The products are swapped: S^T = K Q^T and O^T = V^T P^T, so that the long side (tokens, then head_dim) fills the 64 rows
of a matrix instruction and the group of query heads is its narrow side of 8 or 16.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from deeproot.kernels import checks
from deeproot.kernels.configs import DecodeConfig, decode_config
from deeproot.kernels.launch import TRITON_VERSION, Launch, next_power_of_2
from deeproot.kernels.tiles import FINITE_MIN, load_rows, pool_rows, soft_cap_log2, split_fp8, tile_row

ITEM_FIELDS = ("seq", "token", "kv_begin", "kv_end")
"""Columns of a decode item, see `decode_launch`."""


@triton.jit
def split_bounds(length, num_items, split, KV_HEADS: tl.constexpr, BN: tl.constexpr, MAX_SPLITS: tl.constexpr,
                 SPLIT_TOKENS: tl.constexpr, SMS: tl.constexpr):  # fmt: skip
    """(first token, end, number of splits) of a split, relative to the range of `length` tokens.

    SPLIT_TOKENS = 0 gives about two programs for each multiprocessor and at least 256 tokens a split; else every
    split has SPLIT_TOKENS tokens whatever the batch, so that a sequence's sum is always taken in the same order.
    """
    if SPLIT_TOKENS > 0:
        per = SPLIT_TOKENS
    else:
        wanted = tl.cdiv(2 * SMS, tl.maximum(num_items, 1) * KV_HEADS)
        wanted = tl.minimum(wanted, tl.minimum(MAX_SPLITS, tl.cdiv(length, 256)))
        wanted = tl.maximum(wanted, 1)
        per = tl.maximum(tl.cdiv(tl.cdiv(length, BN), wanted) * BN, BN)
    return split * per, tl.minimum(split * per + per, length), tl.cdiv(length, per)


# fmt: off
@triton.jit
def _walk(
    lo, hi, maximum, total, acc, q, q_low, k, v, k_desc, v_desc, table_row, head, scale, first, end,
    D: tl.constexpr, DP: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    TMA: tl.constexpr, SOFT_CAP: tl.constexpr, FP8: tl.constexpr, MASK: tl.constexpr,
):
    """Online softmax over the KV tokens lo .. hi, of which first .. end are seen where MASK."""
    for start in tl.range(lo, hi, BN):
        if TMA:
            row = tile_row(table_row, start, head, KV_HEADS, PAGE, BN)
            k_tile = k_desc.load([row, 0])
            v_tile = v_desc.load([row, 0])
        else:
            rows = pool_rows(table_row, start, end - 1, head, KV_HEADS, PAGE, BN, MASK)
            k_tile = load_rows(k, rows, D, DP)
            v_tile = load_rows(v, rows, D, DP)
        s = tl.dot(k_tile, q)
        if FP8:
            s = tl.dot(k_tile, q_low, s)
            v_tile = v_tile.to(tl.float16)
            column = scale[None, :]
        else:
            column = scale
        if SOFT_CAP > 0:
            s = soft_cap_log2(s, column, SOFT_CAP)
        if MASK:
            n = start + tl.arange(0, BN)
            s = tl.where(((n >= first) & (n < end))[:, None], s, float("-inf"))
        if SOFT_CAP > 0:
            new = tl.maximum(maximum, tl.max(s, 0))
            p = tl.exp2(s - new[None, :])
        else:
            new = tl.maximum(maximum, tl.max(s, 0) * scale)
            p = tl.exp2(s * column - new[None, :])
        shrink = tl.exp2(maximum - new)
        total = total * shrink + tl.sum(p, 0)
        acc = tl.dot(v_tile.T, p.to(v_tile.dtype), acc * shrink[None, :])
        maximum = new
    return maximum, total, acc
# fmt: on


@triton.jit
def paged_decode_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    partial_ptr,
    lse_ptr,
    used_ptr,
    table_ptr,
    items_ptr,
    num_items_ptr,
    k_scale_ptr,
    v_scale_ptr,
    softmax_scale,
    q_head_rows,
    pool_rows_total,
    table_stride,
    level_items,
    first_level,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BH: tl.constexpr,
    BN: tl.constexpr,
    TMA: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    FP8: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    SMS: tl.constexpr,
):
    head = tl.program_id(0)
    b = tl.program_id(1)
    split = tl.program_id(2)
    num_items = tl.load(num_items_ptr)
    if b >= num_items:
        return
    item = items_ptr + b * 4
    seq = tl.load(item)
    token = tl.load(item + 1)
    begin = tl.load(item + 2)
    kv_end = tl.load(item + 3)
    first = begin
    if WINDOW > 0:
        first = tl.maximum(begin, kv_end - WINDOW)
        begin += (first - begin) // BN * BN
    lo, hi, used = split_bounds(kv_end - begin, num_items, split, KV_HEADS, BN, MAX_SPLITS, SPLIT_TOKENS, SMS)
    if (split == 0) & (head == 0):
        tl.store(used_ptr + b, used)
    if split >= used:
        return
    lo += begin
    hi += begin

    h = tl.arange(0, BH)
    d = tl.arange(0, DP)
    live = h < GROUP
    both = live[None, :] & (d < D)[:, None]
    q_rows = (head * q_head_rows + token * GROUP + h).to(tl.int64)
    q = tl.load(q_ptr + q_rows[None, :] * D + d[:, None], mask=both, other=0.0)
    scale = softmax_scale
    q_low = q
    if FP8:
        q, q_low, q_scale = split_fp8(q.to(tl.float32), 0)
        scale = scale * q_scale * tl.load(k_scale_ptr + head)
    if SOFT_CAP == 0:
        scale = scale * 1.4426950408889634
    if TMA:
        k_desc = tl.make_tensor_descriptor(k_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
        v_desc = tl.make_tensor_descriptor(v_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
    else:
        k_desc = None
        v_desc = None

    maximum = tl.full([BH], FINITE_MIN, tl.float32)
    total = tl.zeros([BH], tl.float32)
    acc = tl.zeros([DP, BH], tl.float32)
    table_row = table_ptr + seq.to(tl.int64) * table_stride
    full = lo + (hi - lo) // BN * BN
    middle = lo
    if WINDOW > 0:
        middle = tl.minimum(tl.where(first > lo, lo + BN, lo), full)
        maximum, total, acc = _walk(
            lo, middle, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head, scale,
            first, hi, D, DP, KV_HEADS, PAGE, BN, TMA, SOFT_CAP, FP8, True,
        )  # fmt: skip
    maximum, total, acc = _walk(
        middle, full, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head, scale,
        first, hi, D, DP, KV_HEADS, PAGE, BN, TMA, SOFT_CAP, FP8, False,
    )  # fmt: skip
    maximum, total, acc = _walk(
        full, hi, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head, scale,
        first, hi, D, DP, KV_HEADS, PAGE, BN, TMA, SOFT_CAP, FP8, True,
    )  # fmt: skip

    norm = 1.0 / total
    if FP8:
        norm = norm * tl.load(v_scale_ptr + head)
    at = ((first_level + split).to(tl.int64) * level_items + b) * (KV_HEADS * GROUP) + head * GROUP + h
    tl.store(partial_ptr + at[None, :] * D + d[:, None], acc * norm[None, :], mask=both)
    tl.store(lse_ptr + at, maximum + tl.log2(total), mask=live)


def decode_launch(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    used: torch.Tensor,
    *,
    softmax_scale: float,
    first_level: int = 0,
    window: int = 0,
    soft_cap: float = 0.0,
    split_tokens: int = 0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    config: DecodeConfig | None = None,
    multiprocessors: int = 132,
) -> Launch:
    """The launch of the splits of paged decode; `merge_launch` makes the output of them.

    q, pools, scales, window and soft_cap as in `prefill_launch`. items: int32 `[capacity, 4]`, of which the first
    `num_items[0]` count: row of page_table, token (its index in q), kv_begin (a multiple of the page and of
    `config.block_n`), kv_end (the new token's position + 1; kv_begin or less for a range that is empty).

    partial: float32 `[levels, capacity, heads, head_dim]` and partial_lse without head_dim: split s of item b is written
    to level `first_level + s`, so there may be `levels - first_level` splits. used: int32 `[capacity]`, receives the
    number of splits of each item, decided on the device from the lengths. split_tokens: fix a split's length (a
    multiple of the tile) for results that do not depend on the batch; then kv_end - kv_begin must not be over
    `(levels - first_level) * split_tokens`. Raises ValueError for tensors that do not fit.
    """
    shape = checks.attention_shape(q, k_pool, v_pool)
    checks.int32("page_table", page_table, dim=2)
    checks.int32("items", items, dim=2, columns=len(ITEM_FIELDS))
    checks.int32("num_items", num_items, dim=1)
    checks.int32("used", used, dim=1)
    levels = checks.partials("partial", partial, partial_lse, shape)
    capacity = items.shape[0]
    if partial.dim() != 4 or partial.shape[1] != capacity or used.shape[0] != capacity:
        raise ValueError(
            f"partial and used must have room for {capacity} items: {tuple(partial.shape)}, {tuple(used.shape)}"
        )
    if levels <= first_level:
        raise ValueError(f"partial has {levels} levels, none of them from first_level {first_level} on")
    if config is None:
        config = decode_config(shape.head_dim, shape.page_size, shape.group, TRITON_VERSION)
    if shape.group > config.block_h:
        raise ValueError(f"block_h {config.block_h} is too small for a group of {shape.group}")
    tma = config.form == "descriptor"
    if tma and shape.page_size % config.block_n:
        raise ValueError(
            f"form {config.form}: a tile of {config.block_n} tokens does not divide a page of {shape.page_size}"
        )
    if split_tokens % config.block_n:
        raise ValueError(
            f"split_tokens must be a multiple of the tile of {config.block_n} tokens, got {split_tokens}"
        )
    args = {
        "q_ptr": q,
        "k_ptr": k_pool,
        "v_ptr": v_pool,
        "partial_ptr": partial,
        "lse_ptr": partial_lse,
        "used_ptr": used,
        "table_ptr": page_table,
        "items_ptr": items,
        "num_items_ptr": num_items,
        "k_scale_ptr": checks.head_scale("k_scale", k_scale, shape, partial_lse),
        "v_scale_ptr": checks.head_scale("v_scale", v_scale, shape, partial_lse),
        "softmax_scale": softmax_scale,
        "q_head_rows": q.stride(0) // shape.head_dim,
        "pool_rows_total": k_pool.numel() // shape.head_dim,
        "table_stride": page_table.stride(0),
        "level_items": capacity,
        "first_level": first_level,
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "D": shape.head_dim,
        "DP": next_power_of_2(shape.head_dim),
        "PAGE": shape.page_size,
        "BH": config.block_h,
        "BN": config.block_n,
        "TMA": tma,
        "WINDOW": window,
        "SOFT_CAP": soft_cap,
        "FP8": shape.fp8,
        "MAX_SPLITS": min(64, levels - first_level),
        "SPLIT_TOKENS": split_tokens,
        "SMS": multiprocessors,
    }
    splits = levels - first_level if split_tokens else min(64, levels - first_level)
    grid = (shape.kv_heads, capacity, splits)
    return Launch(paged_decode_kernel, grid, args, config.num_warps, config.num_stages, descriptors=tma)


def paged_decode(*args: Any, **kwargs: Any) -> None:
    """Run what `decode_launch` makes of the same arguments."""
    decode_launch(*args, **kwargs).run()
