"""One layer's K or V in a pool, written and read by torch."""

from dataclasses import dataclass

import torch

from deeproot.kernels.reference import to_cache


@dataclass(frozen=True, slots=True)
class PagedRows:
    """A tile is one page of one KV head: row `page * num_kv_heads + head` of the pool."""

    pool: torch.Tensor
    """`[pages, num_kv_heads, page_size, head_dim]`, in the model's dtype or e4m3."""
    scale: torch.Tensor | None
    """`[num_kv_heads]` float32: what e4m3 values are multiplied by."""

    @property
    def num_kv_heads(self) -> int:
        return self.pool.shape[1]

    def write(self, x: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor) -> None:
        """x: `[T, num_kv_heads, head_dim]`; pages, offsets: `[T]`."""
        if self.scale is None:
            self.pool[pages, :, offsets] = x
        else:
            # As bytes, since torch cannot index e4m3.
            kept = to_cache(x.float(), self.scale, self.pool.dtype)
            self.pool.view(torch.uint8)[pages, :, offsets] = kept.view(torch.uint8)

    def gather(self, tiles: torch.Tensor, b: int, dtype: torch.dtype) -> torch.Tensor:
        """A contiguous copy `[b, num_kv_heads, pages * page_size, head_dim]` in `dtype`, that of the pool if it is not e4m3."""
        num_pages, num_kv_heads, page_size, head_dim = self.pool.shape
        flat = self.pool.view(num_pages * num_kv_heads, page_size, head_dim)
        shape = b, num_kv_heads, -1, head_dim
        if self.scale is None:
            return flat.index_select(0, tiles).view(shape)
        kept = flat.view(torch.uint8).index_select(0, tiles).view(self.pool.dtype)
        return (kept.view(shape).float() * self.scale[:, None, None]).to(dtype)
