"""Merge of attention states by their LSE, and attention of sequences that share a prefix in two levels.

The shared pages are read once for the queries of all sharers (packed as the rows of prefill items), each suffix alone;
the states of both are merged.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from deeproot.kernels import checks
from deeproot.kernels.launch import Launch, cdiv, next_power_of_2
from deeproot.kernels.paged_decode import decode_launch
from deeproot.kernels.paged_prefill import prefill_launch
from deeproot.kernels.tiles import FINITE_MIN


@triton.jit
def merge_kernel(
    partial_ptr,
    lse_ptr,
    out_ptr,
    out_lse_ptr,
    used_ptr,
    items_ptr,
    num_items_ptr,
    capacity,
    base_levels,
    HEADS: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    ROWS: tl.constexpr,
    DECODE: tl.constexpr,
):
    """Rows are (item, head) pairs, ROWS of them a program, so that every access is 128 bits wide."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DP)
    b = row // HEADS
    if DECODE:
        live = b < tl.load(num_items_ptr)
        levels = base_levels + tl.load(used_ptr + b, mask=live, other=0)
        token = tl.load(items_ptr + b * 4 + 1, mask=live, other=0)
    else:
        live = b < capacity
        levels = tl.zeros([ROWS], tl.int32) + base_levels
        token = b
    maximum = tl.full([ROWS], FINITE_MIN, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DP], tl.float32)
    for level in tl.range(0, tl.max(levels, 0), num_stages=3):
        at = (level * capacity).to(tl.int64) * HEADS + row
        there = live & (level < levels)
        lse = tl.load(lse_ptr + at, mask=there, other=float("-inf"))
        part = tl.load(
            partial_ptr + at[:, None] * D + d[None, :], mask=there[:, None] & (d < D)[None, :], other=0.0
        )
        # a state that saw no token may hold anything, also NaN
        part = tl.where((lse > float("-inf"))[:, None], part, 0.0)
        new = tl.maximum(maximum, lse)
        shrink = tl.exp2(maximum - new)
        weight = tl.exp2(lse - new)
        total = total * shrink + weight
        acc = acc * shrink[:, None] + part * weight[:, None]
        maximum = new
    seen = total > 0.0
    safe = tl.where(seen, total, 1.0)
    to = token.to(tl.int64) * HEADS + row % HEADS
    mask = live[:, None] & (d < D)[None, :]
    tl.store(
        out_ptr + to[:, None] * D + d[None, :], (acc / safe[:, None]).to(out_ptr.dtype.element_ty), mask=mask
    )
    tl.store(out_lse_ptr + to, tl.where(seen, maximum + tl.log2(safe), float("-inf")), mask=live)


def merge_launch(
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    base_levels: int,
    used: torch.Tensor | None = None,
    items: torch.Tensor | None = None,
    num_items: torch.Tensor | None = None,
) -> Launch:
    """The launch of a merge of partial states into `out` and `lse`.

    partial: float32 `[levels, rows, heads, head_dim]`, partial_lse: `[levels, rows, heads]`, base 2. The first
    base_levels levels are merged, and for row b `used[b]` more. With items (the decode items of `decode_launch`, with
    used and num_items) row b goes to token `items[b, 1]` of out `[tokens, heads, head_dim]`, else to token b. A state
    whose LSE is -inf has weight 0 whatever it holds; a row of such states alone gives 0 and -inf.
    """
    _, rows, heads, head_dim = partial.shape
    if (
        partial.dtype != torch.float32
        or partial_lse.shape != partial.shape[:3]
        or not partial.is_contiguous()
    ):
        raise ValueError(
            f"partial must be contiguous float32 with an LSE {tuple(partial.shape[:3])}, got {partial.dtype}"
        )
    if out.shape[-2:] != (heads, head_dim) or lse.shape != out.shape[:-1] or not out.is_contiguous():
        raise ValueError(
            f"out must be [tokens, {heads}, {head_dim}] with its lse, got {tuple(out.shape)}, {tuple(lse.shape)}"
        )
    decode = items is not None and used is not None and num_items is not None
    if not decode and (items is not None or used is not None or num_items is not None):
        raise ValueError("items, used and num_items come together or not at all")
    padded = next_power_of_2(head_dim)
    block = max(1, 1024 // padded)
    nothing = partial_lse
    args = {
        "partial_ptr": partial,
        "lse_ptr": partial_lse,
        "out_ptr": out,
        "out_lse_ptr": lse,
        "used_ptr": used if decode else nothing,
        "items_ptr": items if decode else nothing,
        "num_items_ptr": num_items if decode else nothing,
        "capacity": rows,
        "base_levels": base_levels,
        "HEADS": heads,
        "D": head_dim,
        "DP": padded,
        "ROWS": block,
        "DECODE": decode,
    }
    return Launch(merge_kernel, (cdiv(rows * heads, block),), args, num_warps=4, num_stages=3)


def merge_states(
    partial: torch.Tensor, partial_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Merge every level of `partial` into `out` and `lse`."""
    merge_launch(partial, partial_lse, out, lse, base_levels=partial.shape[0]).run()


def split_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    used: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    first_level: int = 0,
    **options: Any,
) -> None:
    """Paged decode whole: the splits, then their merge into `out` `[tokens, heads, head_dim]`."""
    decode_launch(
        q,
        k_pool,
        v_pool,
        page_table,
        items,
        num_items,
        partial,
        partial_lse,
        used,
        first_level=first_level,
        **options,
    ).run()
    merge_launch(
        partial, partial_lse, out, lse, base_levels=first_level, used=used, items=items, num_items=num_items
    ).run()


def cascade_decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    prefix_items: torch.Tensor,
    num_prefix_items: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    used: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    prefix_levels: int,
    softmax_scale: float,
    prefix_config: Any = None,
    config: Any = None,
    **options: Any,
) -> None:
    """Decode of sequences of which some share a prefix.

    prefix_items: prefill items (`prefill_launch`) whose rows are the sharers' tokens, neighbours in q, with levels
    under prefix_levels: one level a piece of the prefix's KV range. items: each sequence's suffix, kv_begin behind its
    shared prefix; item b must be token b of q (a slice of the batch's q). partial: float32
    `[prefix_levels + splits, capacity, heads, head_dim]`, the capacity q's tokens.
    """
    checks.attention_shape(q, k_pool, v_pool)
    if options.get("window"):
        raise ValueError("window: sharers stand at different positions, so a sliding window has no cascade")
    if partial.shape[1] != q.shape[1]:
        raise ValueError(f"partial must have one row a token of q ({q.shape[1]}), got {partial.shape[1]}")
    shared, shared_lse = partial[:prefix_levels], partial_lse[:prefix_levels]
    # a token that shares nothing is a row that no prefix item writes
    shared_lse.fill_(float("-inf"))
    prefill_launch(
        q, k_pool, v_pool, page_table, prefix_items, num_prefix_items, shared, shared_lse,
        softmax_scale=softmax_scale, config=prefix_config, **options,
    ).run()  # fmt: skip
    split_decode(
        q, k_pool, v_pool, page_table, items, num_items, partial, partial_lse, used, out, lse,
        first_level=prefix_levels, softmax_scale=softmax_scale, config=config, **options,
    )  # fmt: skip


def cascade_prefill(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    page_table: torch.Tensor,
    items: torch.Tensor,
    num_items: torch.Tensor,
    partial: torch.Tensor,
    partial_lse: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    **options: Any,
) -> None:
    """Prefill in which shared prefixes, pieces of a long KV range and suffixes are items of one list.

    Each item's level says where its state goes; no two items may write one row of one level. All levels of partial
    `[levels, tokens, heads, head_dim]` are merged.
    """
    partial_lse.fill_(float("-inf"))
    prefill_launch(q, k_pool, v_pool, page_table, items, num_items, partial, partial_lse, **options).run()
    merge_states(partial, partial_lse, out, lse)
