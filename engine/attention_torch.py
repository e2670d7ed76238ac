"""Paged attention through torch's scaled_dot_product_attention over gathered pages: simple, and the one to trust.

Sequences that compute one token are padded and run together; the others run one by one. Values in slots that do
not belong to a sequence, NaN included, never reach its output: they are cut off, or zeroed after the gather. Layers
with a window gather only the pages that it touches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.layers import soft_cap
from deeproot.engine.paged_rows import PagedRows
from deeproot.engine.transfer import to_device


@dataclass(frozen=True, slots=True)
class _Extend:
    """One sequence that computes several tokens."""

    rows: slice
    """Its tokens in the batch."""
    num_keys: int
    """Tokens from the first of its pages that is read to its end."""
    tiles: torch.Tensor | None
    """`[num_kv_heads * pages]` tiles of its pages; None if nothing is cached, so that K and V are at hand."""
    mask: torch.Tensor | None
    """`[q_len, num_keys]`, added to the scores; None means plainly causal."""


@dataclass(frozen=True, slots=True)
class _Decode:
    """Sequences that compute one token each and read a similar number of others."""

    rows: torch.Tensor
    """`[b]` their tokens in the batch."""
    max_keys: int
    tiles: torch.Tensor
    """`[b * num_kv_heads * pages]`"""
    mask: torch.Tensor | None
    """`[b, 1, 1, max_keys]`, added to the scores; None if all is visible."""
    padding: tuple[torch.Tensor, torch.Tensor] | None
    """Sequence and position of every gathered token past its sequence's end."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What layers of one window do."""

    extends: list[_Extend]
    decodes: list[_Decode]


@dataclass(frozen=True, slots=True)
class _Plan:
    pages: torch.Tensor
    """`[T]` page of each new token."""
    offsets: torch.Tensor
    """`[T]` its place in the page."""
    work: dict[int | None, _Work]
    """By window, of every window that a layer has."""


class TorchAttention:
    """See AttentionBackend; never captured, since `run` reads sizes on the host. A tile is one page of one KV head: row `page * num_kv_heads + head` of the pool."""

    name = "torch"

    def __init__(
        self,
        pool: KVPool,
        scale: float | None = None,
        cap: float | None = None,
        windows: Sequence[int | None] = (),
        dtype: torch.dtype | None = None,
    ) -> None:
        """pool: of the model's own dtype, or e4m3. scale: what scores are multiplied by; None is `head_dim ** -0.5`.

        cap: scaled scores become `cap * tanh(score / cap)`. windows: of each layer, how many of the last tokens, itself
        included, a token attends to; None is all; empty: all, in every layer.
        """
        self._pool = pool
        self._scale = pool.layout.head_dim**-0.5 if scale is None else scale
        self._cap = cap
        self._windows = list(windows) or [None] * pool.layout.num_layers
        self._dtype = dtype or pool.layout.dtype
        self._device = pool.kv(0)[0].device
        self._plan: _Plan | None = None

    def plan(self, batch: ForwardBatch) -> None:
        page_size = self._pool.page_size
        longest = int(batch.seq_lens.max(initial=0))
        whole: _Work | None = None
        work: dict[int | None, _Work] = {}
        for window in dict.fromkeys(self._windows):
            if window is not None and window < longest:
                work[window] = self._plan_work(batch, window)
            else:
                # A window that nothing exceeds is none.
                whole = whole or self._plan_work(batch, None)
                work[window] = whole
        pages = self._to_device(batch.slot_mapping // page_size)
        self._plan = _Plan(pages, self._to_device(batch.slot_mapping % page_size), work)

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        if plan is None:
            raise RuntimeError("run was called before plan")
        k_rows, v_rows = map(PagedRows, self._pool.kv(layer), self._pool.scales(layer))
        k_rows.write(k, plan.pages, plan.offsets)
        v_rows.write(v, plan.pages, plan.offsets)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        work = plan.work[self._windows[layer]]
        for extend in work.extends:
            out[extend.rows] = self._extend(extend, q, k, v, k_rows, v_rows)
        for decode in work.decodes:
            out[decode.rows] = self._decode(decode, q, k_rows, v_rows)
        return out

    def _extend(
        self,
        part: _Extend,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_rows: PagedRows,
        v_rows: PagedRows,
    ) -> torch.Tensor:
        if part.tiles is None:
            keys, values = k[part.rows].transpose(0, 1), v[part.rows].transpose(0, 1)
        else:
            keys = k_rows.gather(part.tiles, 1, q.dtype)[0, :, : part.num_keys]
            values = v_rows.gather(part.tiles, 1, q.dtype)[0, :, : part.num_keys]
        queries = q[part.rows].transpose(0, 1)
        out = self._attend(queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), part.mask)
        return out[0].transpose(0, 1)

    def _decode(self, part: _Decode, q: torch.Tensor, k_rows: PagedRows, v_rows: PagedRows) -> torch.Tensor:
        b, num_kv_heads = len(part.rows), k_rows.num_kv_heads
        keys, values = (rows.gather(part.tiles, b, q.dtype) for rows in (k_rows, v_rows))
        if part.padding is not None:
            sequences, positions = part.padding
            keys[sequences, :, positions] = 0
            values[sequences, :, positions] = 0
        keys, values = keys[:, :, : part.max_keys], values[:, :, : part.max_keys]
        # The query heads of one KV head are the rows of one attention, so that K and V are read once for all.
        queries = q[part.rows].view(b, num_kv_heads, -1, q.shape[-1])
        return self._attend(queries, keys, values, part.mask, causal=False).flatten(1, 2)

    def _attend(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool = True,
    ) -> torch.Tensor:
        """q: `[b, h, n, head_dim]`, keys and values: `[b, h / group, m, head_dim]`. causal: if there is no mask."""
        if self._cap is not None:
            return _attend_capped(q, keys, values, mask, self._scale, self._cap)
        return F.scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=self._scale,
            enable_gqa=q.shape[1] != keys.shape[1],
        )

    def _plan_work(self, batch: ForwardBatch, window: int | None) -> _Work:
        q_lens = np.diff(batch.cu_seqlens_q)
        extends = [self._plan_extend(batch, int(i), window) for i in np.flatnonzero(q_lens > 1)]
        single = np.flatnonzero(q_lens == 1)
        starts = self._first_read(batch.seq_lens[single], 1, window)
        # Numbers of keys in one padded call differ by less than a factor of two.
        sizes = np.frexp(batch.seq_lens[single] - starts)[1]
        decodes = [
            self._plan_decode(batch, single[sizes == size], starts[sizes == size], window)
            for size in np.unique(sizes)
        ]
        return _Work(extends, decodes)

    def _first_read(self, seq_lens: Int32Array, q_len: int, window: int | None) -> Int64Array:
        """Start of the first page that the last `q_len` tokens of each sequence see anything of."""
        if window is None:
            return np.zeros_like(seq_lens, np.int64)
        first: Int64Array = np.maximum(seq_lens.astype(np.int64) - q_len - window + 1, 0)
        first -= first % self._pool.page_size
        return first

    def _plan_extend(self, batch: ForwardBatch, i: int, window: int | None) -> _Extend:
        row, end = int(batch.cu_seqlens_q[i]), int(batch.cu_seqlens_q[i + 1])
        q_len, seq_len = end - row, int(batch.seq_lens[i])
        if window is not None and window >= seq_len:
            window = None
        # e4m3 is read back, so that K and V are the same whether computed now or before.
        uncached = q_len == seq_len and self._pool.layout.dtype == self._dtype
        if uncached and window is None and self._cap is None:
            return _Extend(slice(row, end), seq_len, None, None)
        start = int(self._first_read(batch.seq_lens[i : i + 1], q_len, window)[0])
        num_keys = seq_len - start
        visible = torch.ones(q_len, num_keys, dtype=torch.bool, device=self._device).tril(num_keys - q_len)
        if window is not None:
            visible = visible.triu_(num_keys - q_len - window + 1)
        tiles = None
        if not uncached:
            first_page = np.array([start // self._pool.page_size])
            tiles = self._tiles(batch.page_table[i : i + 1], first_page, num_keys)
        return _Extend(slice(row, end), num_keys, tiles, self._mask(visible))

    def _plan_decode(
        self, batch: ForwardBatch, sequences: Int64Array, starts: Int64Array, window: int | None
    ) -> _Decode:
        ends = batch.seq_lens[sequences] - starts
        max_keys = int(ends.max())
        rows = self._to_device(batch.cu_seqlens_q[sequences].astype(np.int64))
        tiles = self._tiles(batch.page_table[sequences], starts // self._pool.page_size, max_keys)
        keys = np.arange(max_keys)
        absent = keys >= ends[:, None]
        hidden = absent if window is None else absent | (keys < ends[:, None] - window)
        mask = self._mask(self._to_device(~hidden))[:, None, None] if hidden.any() else None
        padding = None
        if absent.any():
            sequence, position = np.nonzero(absent)
            padding = self._to_device(sequence), self._to_device(position)
        return _Decode(rows, max_keys, tiles, mask, padding)

    def _tiles(self, page_table: Int32Array, first_pages: Int64Array, num_tokens: int) -> torch.Tensor:
        """Tiles that hold `num_tokens` from the first page of each row on, in the order sequence, head, page.

        Past the end of the table the last entry is repeated.
        """
        num_kv_heads = self._pool.layout.num_kv_heads
        columns = first_pages[:, None] + np.arange(-(-num_tokens // self._pool.page_size))
        columns = np.minimum(columns, page_table.shape[1] - 1)
        pages = np.take_along_axis(page_table, columns, 1).astype(np.int64)
        tiles = pages[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None]
        return self._to_device(tiles.ravel())

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """0 and -inf: an added mask is faster than one of booleans."""
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=self._device)
        return mask.masked_fill_(~visible, -torch.inf)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(array, self._device)


def _attend_capped(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """Attention written out, since torch's own has no soft cap. Shapes as in `TorchAttention._attend`."""
    b, num_heads, n, _ = q.shape
    # Neighbouring query heads share a KV head.
    rows = q.reshape(b, keys.shape[1], -1, q.shape[-1])
    scores = soft_cap((rows @ keys.transpose(-1, -2)).float().mul_(scale), cap)
    if mask is not None:
        scores.view(b, num_heads, n, -1).add_(mask)
    return (scores.softmax(-1).to(values.dtype) @ values).view(q.shape)
