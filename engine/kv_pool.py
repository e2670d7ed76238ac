"""The memory that holds K and V: pages of tokens, handed out and taken back by number."""

from dataclasses import dataclass

import numpy as np
import torch

from deeproot.engine.batch import Int32Array
from deeproot.engine.page_ops import PageOps, TorchPageOps

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Shape of the K and V of one token, and how many tokens a page holds."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype

    @property
    def page_bytes(self) -> int:
        """Bytes of K and V of one page over all layers."""
        itemsize = torch.empty((), dtype=self.dtype).element_size()
        return 2 * self.num_layers * self.num_kv_heads * self.page_size * self.head_dim * itemsize


class OutOfPages(Exception):
    """`alloc` was asked for more pages than are free."""


class KVPool:
    """Paged K and V tensors with a free list.

    Whoever gets a page from `alloc` owns it until it gives it back by `free` or hands it to the radix tree. A
    page's old content never shows: `alloc` zeroes the pages that it returns, since attention kernels read whole
    pages and 0 * NaN is NaN.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_pages: int,
        device: torch.device | str = "cpu",
        scales: tuple[torch.Tensor, torch.Tensor] | None = None,
        ops: PageOps | None = None,
    ) -> None:
        """scales: of K and of V, each `[num_layers, num_kv_heads]` float32 on the device, by which values are divided
        before they are kept as e4m3; for pools of that dtype only, and ones if None. ops: None is TorchPageOps.
        """
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self.layout = layout
        self.num_pages = num_pages
        # One page more than is handed out: see padding_page.
        shape = (layout.num_layers, num_pages + 1, layout.num_kv_heads, layout.page_size, layout.head_dim)
        # Not zeroed: the system then gives memory only for pages that are used, and start-up does not touch it all.
        self._k = torch.empty(shape, dtype=layout.dtype, device=device)
        self._v = torch.empty(shape, dtype=layout.dtype, device=device)
        self._scales = None
        if layout.dtype == FP8:
            ones = torch.ones(layout.num_layers, layout.num_kv_heads, device=device)
            self._scales = scales or (ones, ones)
        self._ops = ops or TorchPageOps()
        self._zero(np.array([self.padding_page], dtype=np.int32))
        self._free = np.arange(num_pages - 1, -1, -1, dtype=np.int32)
        self._num_free = num_pages

    @property
    def page_size(self) -> int:
        return self.layout.page_size

    @property
    def padding_page(self) -> int:
        """A page that is never handed out, for the tokens that pad a batch (see `batch.pad_decodes`)."""
        return self.num_pages

    @property
    def num_free(self) -> int:
        return self._num_free

    def free_pages(self) -> Int32Array:
        """The numbers of the free pages, a copy."""
        return self._free[: self._num_free].copy()

    def kv(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a layer, each `[num_pages + 1, num_kv_heads, page_size, head_dim]`."""
        return self._k[layer], self._v[layer]

    def alloc(self, n: int) -> Int32Array:
        """Take `n` zeroed pages.

        Raises OutOfPages if fewer are free; nothing is taken then.
        """
        if n > self._num_free:
            raise OutOfPages(f"{n} pages wanted, {self._num_free} free of {self.num_pages}")
        self._num_free -= n
        pages = self._free[self._num_free : self._num_free + n].copy()
        self._zero(pages)
        return pages

    def free(self, pages: Int32Array) -> None:
        """Give pages back. The caller must own them."""
        n = len(pages)
        self._free[self._num_free : self._num_free + n] = pages
        self._num_free += n

    def scales(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """What K and V of each head were divided by, each `[num_kv_heads]` float32; None if they were not."""
        return (None, None) if self._scales is None else (self._scales[0][layer], self._scales[1][layer])

    def copy(self, src: int, dst: int, num_tokens: int) -> None:
        """Copy K and V of the first `num_tokens` tokens of page `src` into page `dst`, all layers."""
        if self.layout.num_layers:
            self._ops.copy((self._k, self._v), src, dst, num_tokens)

    def _zero(self, pages: Int32Array) -> None:
        if len(pages) and self.layout.num_layers:
            self._ops.zero((self._k, self._v), pages)
