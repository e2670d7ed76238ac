"""What is handed to flash-attn: torch functions that do what its documentation says stand in for the package's.

Not tested here: the package itself, which needs a GPU.
"""

from typing import Any

import pytest
import torch
from tests.engine.attention_check import PLAIN, Kind, MakeBackend, check

from deeproot.engine.attention_flash import FlashAttention
from deeproot.engine.kv_pool import KVLayout, KVPool

MIXED = [(40, 1), (23, 1), (0, 50), (30, 20), (0, 1), (15, 1), (16, 1), (90, 3)]


def varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    """flash_attn_varlen_func: causal masks end at the lower right; a window counts (before, after) the own token."""
    assert causal
    q_lens, k_lens = cu_seqlens_q.diff(), cu_seqlens_k.diff()
    assert (int(q_lens.max()), int(k_lens.max())) == (max_seqlen_q, max_seqlen_k)
    out = torch.empty_like(q)
    for i, (n, m) in enumerate(zip(q_lens.tolist(), k_lens.tolist(), strict=True)):
        own = slice(int(cu_seqlens_q[i]), int(cu_seqlens_q[i + 1]))
        keys, values = (x[int(cu_seqlens_k[i]) : int(cu_seqlens_k[i + 1])] for x in (k, v))
        group = q.shape[1] // k.shape[1]
        scores = torch.einsum("thd,shd->hts", q[own], keys.repeat_interleave(group, 1)) * softmax_scale
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        distance = torch.arange(m - n, m)[:, None] - torch.arange(m)[None]
        hidden = distance < 0
        if window_size[0] >= 0:
            hidden |= distance > window_size[0]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        out[own] = torch.einsum("hts,shd->thd", weights, values.repeat_interleave(group, 1))
    return out


def with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """flash_attn_with_kvcache of version 3: caches `[pages, page_size, num_kv_heads, head_dim]`."""
    assert k_cache.stride(-1) == 1
    assert page_table.dtype == cache_seqlens.dtype == cu_seqlens_q.dtype == torch.int32
    lens = cache_seqlens.tolist()
    keys, values = (
        torch.cat([cache[pages.long()].flatten(0, 1)[:n] for pages, n in zip(page_table, lens, strict=True)])
        for cache in (k_cache, v_cache)
    )
    cu_seqlens_k = torch.tensor([0, *lens]).cumsum(0)
    return varlen(q, keys, values, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max(lens), **options), None


def flash(paged: bool) -> MakeBackend:
    def make(pool: KVPool, kind: Kind, num_qo_heads: int) -> FlashAttention:
        function = with_kvcache if paged else varlen
        return FlashAttention(pool, function, paged, kind.scale, kind.cap, [None, kind.window])

    return make


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("kind", [PLAIN, Kind(cap=1.0, window=20), Kind(window=1), Kind(scale=0.7)])
def test_arguments_mean_what_attention_is(kind: Kind, paged: bool) -> None:
    check(MIXED, 3, 2, 16, seed=4, kind=kind, make_backend=flash(paged))


def test_run_before_plan_is_refused() -> None:
    attention = FlashAttention(KVPool(KVLayout(1, 1, 8, 16, torch.float32), 1), varlen, paged=False)
    q = torch.zeros(1, 1, 8)
    with pytest.raises(RuntimeError, match="before plan"):
        attention.run(0, q, q, q)
