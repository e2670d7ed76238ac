"""Zeroing and copying of pages of the KV pool, by torch or by a kernel.

Pools are `[layers, pages, kv_heads, page_size, head_dim]` of any dtype.
"""

from typing import Protocol

import torch

from deeproot.engine.batch import Int32Array
from deeproot.engine.transfer import to_device

Pools = tuple[torch.Tensor, torch.Tensor]
"""K and V."""


class PageOps(Protocol):
    def zero(self, pools: Pools, pages: Int32Array) -> None:
        """Zero whole pages."""

    def copy(self, pools: Pools, src: int, dst: int, num_tokens: int) -> None:
        """Make page `dst`, which has been zeroed, begin with the first `num_tokens` tokens of page `src`."""


class TorchPageOps:
    """See PageOps."""

    def zero(self, pools: Pools, pages: Int32Array) -> None:
        index = to_device(pages, pools[0].device).long()
        for pool in pools:
            # As bytes where torch has no such operation for the dtype (e4m3).
            (pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool).index_fill_(1, index, 0)

    def copy(self, pools: Pools, src: int, dst: int, num_tokens: int) -> None:
        for pool in pools:
            pool[:, dst, :, :num_tokens] = pool[:, src, :, :num_tokens]
