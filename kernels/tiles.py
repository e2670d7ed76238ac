"""What the attention kernels share: the walk from token to page, and logits to base 2.

Pools are `[pages, kv_heads, page, head_dim]`, so the tokens of one head in one page are `page` neighbouring rows of a
matrix of rows, and row `(page * kv_heads + head) * PAGE + token % PAGE` is a token's K or V.
"""

import triton
import triton.language as tl

FINITE_MIN = tl.constexpr(-1.0e30)
"""Start of a running maximum. Finite, so that a row whose logits are all -inf so far gives weights 0 and not NaN."""


@triton.jit
def pool_rows(
    table_row,
    start,
    last,
    head,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BN: tl.constexpr,
    CLAMP: tl.constexpr,
):
    """Pool rows `[BN]` of tokens `start .. start + BN`.

    With CLAMP, tokens past `last` repeat `last`: a page table's entries past its sequence may name pages that hold
    anything, and 0 * NaN is NaN.
    """
    token = start + tl.arange(0, BN)
    if CLAMP:
        token = tl.minimum(token, last)
    # unsigned: division of a signed number by a power of two takes four instructions for its sign
    token = token.to(tl.uint32)
    page = tl.load(table_row + token // PAGE)
    return page * (KV_HEADS * PAGE) + head * PAGE + (token % PAGE).to(tl.int32)


@triton.jit
def load_rows(pool, rows, D: tl.constexpr, DP: tl.constexpr):
    """Rows of a pool, `[len(rows), DP]`, zero from column D on."""
    d = tl.arange(0, DP)
    pointers = pool + rows.to(tl.int64)[:, None] * D + d[None, :]
    if DP == D:
        return tl.load(pointers)
    return tl.load(pointers, mask=(d < D)[None, :], other=0.0)


@triton.jit
def tile_row(table_row, start, head, KV_HEADS: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr):
    """First pool row of a tile that lies in one page (`start` a multiple of the tile, which divides PAGE)."""
    token = tl.cast(start, tl.uint32)
    page = tl.load(table_row + token // PAGE)
    row = page * (KV_HEADS * PAGE) + head * PAGE
    if BN < PAGE:
        row += (token % PAGE).to(tl.int32)
    return row


@triton.jit
def soft_cap_log2(logits, scale, CAP: tl.constexpr):
    """`CAP * tanh(logits * scale / CAP)` in base-2 units, by exp2 alone; `scale` has no log2(e) in it."""
    log2e: tl.constexpr = 1.4426950408889634
    e = tl.exp2(logits * (scale * (2.0 * log2e / CAP)))
    return (CAP * log2e) * (1.0 - 2.0 / (1.0 + e))


@triton.jit
def split_fp8(x, AXIS: tl.constexpr):
    """`x` as the sum of two e4m3 tensors over one scale a row: (high, low, scale), x = (high + low) * scale.

    A single e4m3 value keeps 4 bits of a query; the second term brings that to 8, what bf16 holds, for a few more
    matrix instructions. `scale` has the length of the axis that is left.
    """
    largest = tl.max(tl.abs(x), AXIS)
    scale = tl.where(largest > 0.0, largest / 448.0, 1.0)
    scaled = x / tl.expand_dims(scale, AXIS)
    high = scaled.to(tl.float8e4nv)
    low = (scaled - high.to(tl.float32)).to(tl.float8e4nv)
    return high, low, scale
