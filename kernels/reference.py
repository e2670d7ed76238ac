"""Torch twins of the kernels: the same arguments, plain code, float32 or float64 inside. Triton is not needed.

They say what each kernel computes, are what its tests compare with, and run where there is no GPU.
"""

import torch

from deeproot.kernels.philox import gumbel

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0


def pack_q(q: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """`[tokens, heads, head_dim]` to the packed `[kv_heads, tokens, group, head_dim]` of the attention kernels."""
    tokens, heads, head_dim = q.shape
    return q.view(tokens, kv_heads, heads // kv_heads, head_dim).transpose(0, 1).contiguous()


def gather_tokens(
    pool: torch.Tensor,
    pages: torch.Tensor,
    begin: int,
    end: int,
    scale: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Tokens begin .. end of a sequence from a pool, `[end - begin, kv_heads, head_dim]` in `dtype`, scaled."""
    page = pool.shape[2]
    token = torch.arange(begin, end, device=pool.device)
    values = pool[pages.long()[token // page], :, token % page].to(dtype)
    return values if scale is None else values * scale.to(dtype)[None, :, None]


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    seen: torch.Tensor,
    softmax_scale: float,
    soft_cap: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of rows of one KV head each: q `[heads, rows, d]`, k and v `[n, heads, d]`, seen `[rows, n]`.

    Returns the output `[heads, rows, d]` and the base-2 LSE `[heads, rows]`; a row that sees nothing gives 0 and -inf.
    """
    logits = torch.einsum("hrd,nhd->hrn", q, k) * softmax_scale
    if soft_cap > 0:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    logits = logits.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(logits, -1)
    weights = torch.exp(logits - torch.where(lse.isinf(), torch.zeros_like(lse), lse)[..., None])
    return torch.einsum("hrn,nhd->hrd", weights, v), lse / torch.log(torch.tensor(2.0, dtype=lse.dtype))


def paged_prefill(
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
    dtype: torch.dtype = torch.float32,
) -> None:
    """Twin of `paged_prefill.paged_prefill`; `dtype` is what it computes in."""
    kv_heads, tokens, group, head_dim = q.shape
    rows = q.reshape(kv_heads, tokens * group, head_dim).to(dtype)
    out4 = out.view(-1, tokens, kv_heads, group, head_dim)
    lse4 = lse.view(-1, tokens, kv_heads, group)
    for seq, row, count, offset, context, begin, end, level in items[: int(num_items)].tolist():
        position = context + (offset + torch.arange(count)) // group
        token = torch.arange(begin, end)
        seen = token[None, :] <= position[:, None]
        if window > 0:
            seen &= token[None, :] > position[:, None] - window
        k = gather_tokens(k_pool, page_table[seq], begin, end, k_scale, dtype)
        v = gather_tokens(v_pool, page_table[seq], begin, end, v_scale, dtype)
        o, state = attend(rows[:, row : row + count], k, v, seen, softmax_scale, soft_cap)
        at = torch.arange(row, row + count)
        out4[level, at // group, :, at % group] = o.transpose(0, 1).to(out.dtype)
        lse4[level, at // group, :, at % group] = state.transpose(0, 1).to(lse.dtype)


def paged_decode(
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
    dtype: torch.dtype = torch.float32,
) -> None:
    """Twin of `cascade.split_decode`: splits and merge in one, straight to out `[tokens, heads, head_dim]`."""
    kv_heads, _, group, head_dim = q.shape
    for seq, token, begin, end in items[: int(num_items)].tolist():
        first = max(begin, end - window) if window > 0 else begin
        k = gather_tokens(k_pool, page_table[seq], first, end, k_scale, dtype)
        v = gather_tokens(v_pool, page_table[seq], first, end, v_scale, dtype)
        seen = torch.ones(group, max(end - first, 0), dtype=torch.bool)
        o, state = attend(q[:, token].to(dtype), k, v, seen, softmax_scale, soft_cap)
        out[token] = o.reshape(kv_heads * group, head_dim).to(out.dtype)
        lse[token] = state.reshape(-1).to(lse.dtype)


def merge_states(
    partial: torch.Tensor, partial_lse: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """Twin of `cascade.merge_states`: partial `[levels, rows, heads, head_dim]` by their base-2 LSE."""
    some = partial_lse > float("-inf")
    top = torch.where(some, partial_lse, torch.full_like(partial_lse, -1e30)).amax(0)
    weight = torch.where(some, torch.exp2(partial_lse - top), torch.zeros_like(partial_lse))
    total = weight.sum(0)
    kept = torch.where(some[..., None], partial, torch.zeros_like(partial))
    merged = (kept * weight[..., None]).sum(0) / torch.where(total > 0, total, torch.ones_like(total))[
        ..., None
    ]
    out.copy_(merged)
    lse.copy_(torch.where(total > 0, top + torch.log2(total), torch.full_like(total, float("-inf"))))


def rmsnorm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """Twin of `rmsnorm.rmsnorm`: adds x to residual in place if there is one, returns the norm of the sum."""
    if residual is not None:
        residual.add_(x)
        x = residual
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Twin of `silu_mul.silu_mul`: silu of the left half of the columns times the right half."""
    gate, up = gate_up.float().chunk(2, -1)
    return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of x `[..., d]` by cos and sin `[..., d / 2]`: column i turns with column i + d / 2."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


def to_cache(x: torch.Tensor, scale: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """x `[tokens, kv_heads, d]` as a pool keeps it: over its head's scale and clamped where the pool is e4m3."""
    if dtype != FP8:
        return x.to(dtype)
    assert scale is not None
    return (x / scale[None, :, None]).clamp(-FP8_MAX, FP8_MAX).to(dtype)


def store_kv(
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
) -> None:
    """Twin of `store_kv.store_kv`."""
    half = q.shape[-1] // 2
    angles = cos_sin[positions][:, None]
    cos, sin = angles[..., :half], angles[..., half:]

    def prepared(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        wide = x.float()
        if weight is not None:
            wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()
        return rotate(wide, cos, sin)

    q_packed.copy_(pack_q(prepared(q, q_weight), k.shape[1]))
    page, offset = slot_mapping // k_pool.shape[2], slot_mapping % k_pool.shape[2]
    k_pool[page, :, offset] = to_cache(prepared(k, k_weight), k_scale, k_pool.dtype)
    v_pool[page, :, offset] = to_cache(v.float(), v_scale, v_pool.dtype)


def relocate(
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    source: torch.Tensor,
    target: torch.Tensor,
    cos_sin: torch.Tensor,
) -> None:
    """Twin of `relocate.relocate`: pools `[layers, pages, kv_heads, page, head_dim]`."""
    page, half = k_pool.shape[3], k_pool.shape[4] // 2
    cos, sin = cos_sin[:, None, None, :half], cos_sin[:, None, None, half:]
    moved = rotate(k_pool[:, source // page, :, source % page].float(), cos, sin)
    if k_pool.dtype == FP8:
        moved = moved.clamp(-FP8_MAX, FP8_MAX)
    k_pool[:, target // page, :, target % page] = moved.to(k_pool.dtype)
    v_pool[:, target // page, :, target % page] = v_pool[:, source // page, :, source % page]


def copy_pages(
    source: torch.Tensor,
    target: torch.Tensor,
    source_pages: torch.Tensor,
    target_pages: torch.Tensor,
    tokens: torch.Tensor,
) -> None:
    """Twin of `copy_pages.copy_pages`: pools `[layers, pages, kv_heads, page, head_dim]`."""
    for src, dst, count in zip(source_pages.tolist(), target_pages.tolist(), tokens.tolist(), strict=True):
        target[:, dst] = 0
        target[:, dst, :, :count] = source[:, src, :, :count]


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Twin of `sample.sample`: one token a row of logits `[rows, vocabulary]`, int64."""
    picked = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row in range(logits.shape[0]):
        line = logits[row].float()
        if float(temperature[row]) == 0.0:
            picked[row] = int(line.argmax())
            continue
        line = line / temperature[row]
        order = torch.sort(line, descending=True).values
        floor = torch.tensor(float("-inf"))
        k = int(top_k[row])
        if 0 < k < len(line):
            floor = order[k - 1]
        weight = torch.exp(order - order[0])
        if float(top_p[row]) < 1.0:
            kept = torch.where(order >= floor, weight, torch.zeros_like(weight))
            enough = int((kept.cumsum(0) < top_p[row] * kept.sum()).sum())
            floor = torch.maximum(floor, order[min(enough, len(order) - 1)])
        if float(min_p[row]) > 0.0:
            floor = torch.maximum(floor, order[0] + torch.log(min_p[row]))
        noise = gumbel(int(seeds[row]), int(positions[row]), len(line)).to(line.device)
        picked[row] = int(
            torch.where(line >= floor, line + noise, torch.full_like(line, float("-inf"))).argmax()
        )
    return picked
