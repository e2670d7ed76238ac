"""Paged attention by the flash-attn package, for comparison with the project's own kernels.

Version 2 wants pages of 256 tokens, which the pool has not, so K and V are gathered first; version 3 reads pages where
they are. Neither has run on a GPU yet: the tests put a torch function in the place of the package's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.paged_rows import PagedRows
from deeproot.engine.transfer import to_device

FlashFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Plan:
    pages: torch.Tensor
    """`[T]` page of each new token."""
    offsets: torch.Tensor
    """`[T]` its place in the page."""
    cu_seqlens_q: torch.Tensor
    max_q: int
    seq_lens: torch.Tensor
    """`[B]` int32"""
    cu_seqlens_k: torch.Tensor
    max_k: int
    page_table: torch.Tensor
    """`[B, P]` int32"""
    cached: tuple[torch.Tensor, torch.Tensor] | None
    """Page and place of every token of every sequence, in order; version 2 only."""


class FlashAttention:
    """See AttentionBackend; never captured."""

    name = "flash"

    def __init__(
        self,
        pool: KVPool,
        function: FlashFunction,
        paged: bool,
        scale: float | None = None,
        cap: float | None = None,
        windows: Sequence[int | None] = (),
    ) -> None:
        """function: version 2's `flash_attn_varlen_func`, or version 3's `flash_attn_with_kvcache` if `paged`.

        pool: bfloat16 or float16. scale, cap, windows: as in TorchAttention.
        """
        self._pool, self._function, self._paged = pool, function, paged
        self._scale = pool.layout.head_dim**-0.5 if scale is None else scale
        self._cap = cap or 0.0
        self._windows = list(windows) or [None] * pool.layout.num_layers
        self._device = pool.kv(0)[0].device
        self._plan: _Plan | None = None

    def plan(self, batch: ForwardBatch) -> None:
        page_size = self._pool.page_size
        lens = batch.seq_lens.astype(np.int64)
        cu_k = np.concatenate(([0], np.cumsum(lens)))
        cached = None
        if not self._paged:
            token = np.arange(cu_k[-1]) - np.repeat(cu_k[:-1], lens)
            pages = batch.page_table[np.repeat(np.arange(len(lens)), lens), token // page_size]
            cached = self._upload(pages.astype(np.int64)), self._upload(token % page_size)
        self._plan = _Plan(
            pages=self._upload(batch.slot_mapping // page_size),
            offsets=self._upload(batch.slot_mapping % page_size),
            cu_seqlens_q=self._upload(batch.cu_seqlens_q),
            max_q=int(np.diff(batch.cu_seqlens_q).max()),
            seq_lens=self._upload(batch.seq_lens),
            cu_seqlens_k=self._upload(cu_k.astype(np.int32)),
            max_k=int(lens.max()),
            page_table=self._upload(batch.page_table),
            cached=cached,
        )

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        if plan is None:
            raise RuntimeError("run was called before plan")
        pools = self._pool.kv(layer)
        for pool, new in zip(pools, (k, v), strict=True):
            PagedRows(pool, None).write(new, plan.pages, plan.offsets)
        window = self._windows[layer]
        options = {
            "softmax_scale": self._scale,
            "causal": True,
            "window_size": (-1 if window is None else window - 1, 0 if window is not None else -1),
            "softcap": self._cap,
        }
        out = (self._run_paged if self._paged else self._run_gathered)(plan, q, pools, options)
        # Version 3 may return the LSE beside it.
        result: torch.Tensor = out[0] if isinstance(out, tuple) else out
        return result

    def _run_paged(
        self, plan: _Plan, q: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]
    ) -> Any:
        # As views [pages, page_size, num_kv_heads, head_dim], which the package wants; any strides will do.
        k_cache, v_cache = (pool.transpose(1, 2) for pool in pools)
        return self._function(
            q,
            k_cache,
            v_cache,
            cache_seqlens=plan.seq_lens,
            page_table=plan.page_table,
            cu_seqlens_q=plan.cu_seqlens_q,
            max_seqlen_q=plan.max_q,
            **options,
        )

    def _run_gathered(
        self, plan: _Plan, q: torch.Tensor, pools: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]
    ) -> Any:
        assert plan.cached is not None
        pages, offsets = plan.cached
        keys, values = (pool[pages, :, offsets] for pool in pools)
        return self._function(
            q, keys, values, plan.cu_seqlens_q, plan.cu_seqlens_k, plan.max_q, plan.max_k, **options
        )

    def _upload(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self._device)
