"""Attention of ragged queries over paged K and V: the warp-specialised form, in which one warp group only loads.

Triton specialises a loop only where all of this holds, and else silently does not: four warps; Q, K and V through tensor
descriptors made in the kernel; one loop with the mask inside it; no early return. So there is one program an item and
head, and a spare program runs a loop of no trips.
"""

import triton
import triton.language as tl

from deeproot.kernels.tiles import FINITE_MIN, soft_cap_log2, tile_row


@triton.jit
def paged_prefill_specialised_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    table_ptr,
    items_ptr,
    num_items_ptr,
    softmax_scale,
    q_head_rows,
    q_rows_total,
    out_tokens,
    pool_rows_total,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
):
    w = tl.program_id(0)
    head = tl.program_id(1)
    item = items_ptr + w * 8
    seq = tl.load(item)
    row0 = tl.load(item + 1)
    rows = tl.load(item + 2)
    offset = tl.load(item + 3)
    context = tl.load(item + 4)
    kv_begin = tl.load(item + 5)
    kv_end = tl.load(item + 6)
    level = tl.load(item + 7)
    # an item past the list's length is whatever the buffer held: no rows, no trips
    spare = w >= tl.load(num_items_ptr)
    rows = tl.where(spare, 0, rows)
    row0 = tl.where(spare, 0, row0)
    seq = tl.where(spare, 0, seq)

    q_desc = tl.make_tensor_descriptor(q_ptr, [q_rows_total, D], [D, 1], [BM, DP])
    k_desc = tl.make_tensor_descriptor(k_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
    v_desc = tl.make_tensor_descriptor(v_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
    q = q_desc.load([head * q_head_rows + row0, 0])

    m = tl.arange(0, BM)
    d = tl.arange(0, DP)
    position = context + (offset + m) // GROUP
    lo = kv_begin
    if WINDOW > 0:
        lo += tl.maximum(context + offset // GROUP + 1 - WINDOW - kv_begin, 0) // BN * BN
    hi = tl.minimum(kv_end, context + (offset + rows - 1) // GROUP + 1)
    hi = tl.where(spare, lo, hi)
    limit = tl.minimum(position + 1, kv_end)
    if SOFT_CAP > 0:
        scale = 1.0
    else:
        scale = softmax_scale * 1.4426950408889634
    maximum = tl.full([BM], FINITE_MIN, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    table_row = table_ptr + seq.to(tl.int64) * table_stride
    for start in tl.range(lo, hi, BN, warp_specialize=True, num_stages=STAGES):
        row = tile_row(table_row, start, head, KV_HEADS, PAGE, BN)
        k_tile = k_desc.load([row, 0])
        s = tl.dot(q, k_tile.T)
        if SOFT_CAP > 0:
            s = soft_cap_log2(s, softmax_scale, SOFT_CAP)
        n = start + tl.arange(0, BN)
        seen = n[None, :] < limit[:, None]
        if WINDOW > 0:
            seen = seen & (n[None, :] > position[:, None] - WINDOW)
        s = tl.where(seen, s, float("-inf"))
        new = tl.maximum(maximum, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new[:, None])
        shrink = tl.exp2(maximum - new)
        tile_total = tl.sum(p, 1)
        acc = acc * shrink[:, None]
        v_tile = v_desc.load([row, 0])
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc)
        total = total * shrink + tile_total
        maximum = new

    live = m < rows
    some = total > 0.0
    safe = tl.where(some, total, 1.0)
    out = acc / safe[:, None]
    lse = tl.where(some, maximum + tl.log2(safe), float("-inf"))
    flat = ((row0 + m) // GROUP) * (KV_HEADS * GROUP) + head * GROUP + (row0 + m) % GROUP
    at = level.to(tl.int64) * out_tokens * (KV_HEADS * GROUP) + flat
    out_mask = live[:, None] & (d < D)[None, :]
    tl.store(out_ptr + at[:, None] * D + d[None, :], out.to(out_ptr.dtype.element_ty), mask=out_mask)
    tl.store(lse_ptr + at, lse, mask=live)
