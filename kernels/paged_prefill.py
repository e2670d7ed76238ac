"""Attention of ragged queries over paged K and V: the plain form, any page size, any group, bf16 or fp8 pools."""

from typing import Any

import torch
import triton
import triton.language as tl

from deeproot.kernels import checks
from deeproot.kernels.configs import PrefillConfig, prefill_config
from deeproot.kernels.launch import TRITON_VERSION, Launch, next_power_of_2
from deeproot.kernels.paged_prefill_specialised import paged_prefill_specialised_kernel
from deeproot.kernels.tiles import FINITE_MIN, load_rows, pool_rows, soft_cap_log2, split_fp8, tile_row

ITEM_FIELDS = ("seq", "row", "rows", "offset", "context", "kv_begin", "kv_end", "level")
"""Columns of a work item, see `prefill_launch`."""


# fmt: off
@triton.jit
def _walk(
    lo, hi, last, maximum, total, acc, q, q_low, k, v, k_desc, v_desc, table_row, head, scale, position, kv_end,
    KV_HEADS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
    TMA: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, FP8: tl.constexpr, MASK: tl.constexpr,
):
    """Online softmax over the KV tokens lo .. hi. Where MASK, row m sees columns up to position[m], below kv_end."""
    for start in tl.range(lo, hi, BN):
        if TMA:
            row = tile_row(table_row, start, head, KV_HEADS, PAGE, BN)
            k_tile = k_desc.load([row, 0])
        else:
            rows = pool_rows(table_row, start, last, head, KV_HEADS, PAGE, BN, MASK)
            k_tile = load_rows(k, rows, D, DP)
        s = tl.dot(q, k_tile.T)
        if FP8:
            s = tl.dot(q_low, k_tile.T, s)
            column = scale[:, None]
        else:
            column = scale
        if SOFT_CAP > 0:
            s = soft_cap_log2(s, column, SOFT_CAP)
        if MASK:
            n = start + tl.arange(0, BN)
            seen = n[None, :] < tl.minimum(position + 1, kv_end)[:, None]
            if WINDOW > 0:
                seen = seen & (n[None, :] > position[:, None] - WINDOW)
            s = tl.where(seen, s, float("-inf"))
        if SOFT_CAP > 0:
            new = tl.maximum(maximum, tl.max(s, 1))
            p = tl.exp2(s - new[:, None])
        else:
            new = tl.maximum(maximum, tl.max(s, 1) * scale)
            p = tl.exp2(s * column - new[:, None])
        shrink = tl.exp2(maximum - new)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        if TMA:
            v_tile = v_desc.load([row, 0])
        else:
            v_tile = load_rows(v, rows, D, DP)
        if FP8:
            # e4m3 to fp16 is one instruction for two values, to bf16 it is four
            v_tile = v_tile.to(tl.float16)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc)
        maximum = new
    return maximum, total, acc
# fmt: on


@triton.jit
def paged_prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    lse_ptr,
    table_ptr,
    items_ptr,
    num_items_ptr,
    k_scale_ptr,
    v_scale_ptr,
    softmax_scale,
    q_head_rows,
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
    TMA: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    FP8: tl.constexpr,
):
    m = tl.arange(0, BM)
    d = tl.arange(0, DP)
    if TMA:
        k_desc = tl.make_tensor_descriptor(k_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
        v_desc = tl.make_tensor_descriptor(v_ptr, [pool_rows_total, D], [D, 1], [BN, DP])
    else:
        k_desc = None
        v_desc = None
    work = tl.load(num_items_ptr) * KV_HEADS
    for w in tl.range(tl.program_id(0), work, tl.num_programs(0)):
        head = w % KV_HEADS
        item = items_ptr + (w // KV_HEADS) * 8
        seq = tl.load(item)
        row0 = tl.load(item + 1)
        rows = tl.load(item + 2)
        offset = tl.load(item + 3)
        context = tl.load(item + 4)
        kv_begin = tl.load(item + 5)
        kv_end = tl.load(item + 6)

        live = m < rows
        q_rows = (head * q_head_rows + row0 + m).to(tl.int64)
        q_mask = live[:, None] & (d < D)[None, :]
        q = tl.load(q_ptr + q_rows[:, None] * D + d[None, :], mask=q_mask, other=0.0)
        scale = softmax_scale
        q_low = q
        if FP8:
            q, q_low, q_scale = split_fp8(q.to(tl.float32), 1)
            scale = scale * q_scale * tl.load(k_scale_ptr + head)
        if SOFT_CAP == 0:
            scale = scale * 1.4426950408889634

        position = context + (offset + m) // GROUP
        first_position = context + offset // GROUP
        last_position = context + (offset + rows - 1) // GROUP
        hi = tl.minimum(kv_end, last_position + 1)
        lo = kv_begin
        if WINDOW > 0:
            lo += tl.maximum(first_position + 1 - WINDOW - kv_begin, 0) // BN * BN
        # tiles that every row sees in full: from `middle` to `full`
        full = lo + tl.maximum(tl.minimum(first_position + 1, hi) - lo, 0) // BN * BN
        middle = lo
        if WINDOW > 0:
            middle += tl.cdiv(tl.maximum(last_position + 1 - WINDOW - lo, 0), BN) * BN
            middle = tl.minimum(middle, full)

        maximum = tl.full([BM], FINITE_MIN, tl.float32)
        total = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        table_row = table_ptr + seq.to(tl.int64) * table_stride
        last = hi - 1
        if WINDOW > 0:
            maximum, total, acc = _walk(
                lo, middle, last, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head,
                scale, position, kv_end, KV_HEADS, D, DP, PAGE, BN, TMA, WINDOW, SOFT_CAP, FP8, True,
            )  # fmt: skip
        maximum, total, acc = _walk(
            middle, full, last, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head,
            scale, position, kv_end, KV_HEADS, D, DP, PAGE, BN, TMA, WINDOW, SOFT_CAP, FP8, False,
        )  # fmt: skip
        maximum, total, acc = _walk(
            full, hi, last, maximum, total, acc, q, q_low, k_ptr, v_ptr, k_desc, v_desc, table_row, head,
            scale, position, kv_end, KV_HEADS, D, DP, PAGE, BN, TMA, WINDOW, SOFT_CAP, FP8, True,
        )  # fmt: skip

        # read again rather than kept in registers over the loops
        row0 = tl.load(item + 1)
        rows = tl.load(item + 2)
        level = tl.load(item + 7)
        live = m < rows
        seen = total > 0.0
        norm = 1.0 / tl.where(seen, total, 1.0)
        if FP8:
            norm = norm * tl.load(v_scale_ptr + head)
        out = acc * norm[:, None]
        lse = tl.where(seen, maximum + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
        flat = ((row0 + m) // GROUP) * (KV_HEADS * GROUP) + head * GROUP + (row0 + m) % GROUP
        out_mask = live[:, None] & (d < D)[None, :]
        at = level.to(tl.int64) * out_tokens * (KV_HEADS * GROUP) + flat
        tl.store(out_ptr + at[:, None] * D + d[None, :], out.to(out_ptr.dtype.element_ty), mask=out_mask)
        tl.store(lse_ptr + at, lse, mask=live)


def prefill_launch(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    softmax_scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    config: PrefillConfig | None = None,
    multiprocessors: int = 132,
) -> Launch:
    """The launch of paged prefill over a device work list.

    q: `[kv_heads, tokens, group, head_dim]` (see `pack_q`); pools: `[pages, kv_heads, page, head_dim]` in q's dtype, or
    e4m3 with float32 `[kv_heads]` scales; page_table: int32 `[sequences, pages]`; out: `[tokens, heads, head_dim]`, or
    with levels before it; lse: float32, out's shape without head_dim, base 2, -inf for a row that sees no token.

    items: int32 `[capacity, 8]`, of which the first `num_items[0]` count, longest first. A head's rows are numbered
    `token * group + head in group`; an item is up to `config.block_m` neighbouring rows of one sequence:
      seq       row of page_table
      row       its first row
      rows      how many rows, 1 to block_m
      offset    `row` counted from the sequence's first new row
      context   position of the sequence's first new token
      kv_begin  first KV token, a multiple of the page and of `config.block_n`
      kv_end    end of the KV tokens; a row sees tokens up to its own position, below kv_end
      level     which level of `out` and `lse` receives the rows
    Items past num_items may hold anything. A shared prefix is an item whose `context` is at least its `kv_end`.

    window: a token sees itself and the `window - 1` tokens before it; 0 is no limit. soft_cap: logits become
    `soft_cap * tanh(logits / soft_cap)`; 0 is off. Raises ValueError for tensors that do not fit.
    """
    shape = checks.attention_shape(q, k_pool, v_pool)
    checks.int32("page_table", page_table, dim=2)
    checks.int32("items", items, dim=2, columns=len(ITEM_FIELDS))
    checks.int32("num_items", num_items, dim=1)
    checks.partials("out", out, lse, shape)
    if config is None:
        config = prefill_config(shape.head_dim, shape.page_size, shape.fp8, TRITON_VERSION)
    specialised = config.form == "specialised"
    tma = config.form != "gather"
    if tma and shape.page_size % config.block_n:
        raise ValueError(
            f"form {config.form}: a tile of {config.block_n} tokens does not divide a page of {shape.page_size}"
        )
    args = {
        "q_ptr": q,
        "k_ptr": k_pool,
        "v_ptr": v_pool,
        "out_ptr": out,
        "lse_ptr": lse,
        "table_ptr": page_table,
        "items_ptr": items,
        "num_items_ptr": num_items,
        "softmax_scale": softmax_scale,
        "q_head_rows": q.stride(0) // shape.head_dim,
        "out_tokens": out.shape[-3],
        "pool_rows_total": k_pool.numel() // shape.head_dim,
        "table_stride": page_table.stride(0),
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "D": shape.head_dim,
        "DP": next_power_of_2(shape.head_dim),
        "PAGE": shape.page_size,
        "BM": config.block_m,
        "BN": config.block_n,
        "WINDOW": window,
        "SOFT_CAP": soft_cap,
    }
    if specialised:
        if shape.fp8:
            raise ValueError("the warp-specialised form has no fp8 pools: use the plain form")
        args |= {
            "q_rows_total": (shape.kv_heads - 1) * (q.stride(0) // shape.head_dim)
            + shape.tokens * shape.group
        }
        args |= {"STAGES": config.num_stages}
        kernel = paged_prefill_specialised_kernel
        grid: tuple[int, ...] = (items.shape[0], shape.kv_heads)
    else:
        args |= {
            "k_scale_ptr": checks.head_scale("k_scale", k_scale, shape, lse),
            "v_scale_ptr": checks.head_scale("v_scale", v_scale, shape, lse),
            "TMA": tma,
            "FP8": shape.fp8,
        }
        kernel = paged_prefill_kernel
        grid = (min(items.shape[0] * shape.kv_heads, multiprocessors * config.per_sm),)
    return Launch(kernel, grid, args, config.num_warps, config.num_stages, descriptors=tma)


def paged_prefill(*args: Any, **kwargs: Any) -> None:
    """Run what `prefill_launch` makes of the same arguments."""
    prefill_launch(*args, **kwargs).run()
