"""Paged attention through torch's scaled_dot_product_attention over gathered pages: simple, and the one to trust.

Sequences that compute one token are padded and run together; the others run one by one. Values in slots that do
not belong to a sequence, NaN included, never reach its output: they are cut off, or zeroed after the gather.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array
from deeproot.engine.kv_pool import KVPool


@dataclass(frozen=True, slots=True)
class _Extend:
    """One sequence that computes several tokens."""

    rows: slice
    """Its tokens in the batch."""
    seq_len: int
    tiles: torch.Tensor | None
    """`[num_kv_heads * pages]` tiles of its pages; None if nothing is cached, so that K and V are at hand."""
    mask: torch.Tensor | None
    """`[q_len, seq_len]`, added to the scores; None means plainly causal."""


@dataclass(frozen=True, slots=True)
class _Decode:
    """Sequences of similar length that compute one token each."""

    rows: torch.Tensor
    """`[b]` their tokens in the batch."""
    max_len: int
    tiles: torch.Tensor
    """`[b * num_kv_heads * pages]`"""
    mask: torch.Tensor | None
    """`[b, 1, 1, max_len]`, added to the scores; None if all are of one length."""
    padding: tuple[torch.Tensor, torch.Tensor] | None
    """Sequence and position of every gathered token past its sequence's end."""


@dataclass(frozen=True, slots=True)
class _Plan:
    pages: torch.Tensor
    """`[T]` page of each new token."""
    offsets: torch.Tensor
    """`[T]` its place in the page."""
    extends: list[_Extend]
    decodes: list[_Decode]


class TorchAttention:
    """See AttentionBackend. A tile is one page of one KV head: row `page * num_kv_heads + head` of the pool."""

    name = "torch"

    def __init__(self, pool: KVPool, scale: float | None = None) -> None:
        """pool: of the model's own dtype. scale: what scores are multiplied by; None is `head_dim ** -0.5`."""
        self._pool = pool
        self._scale = scale
        self._device = pool.kv(0)[0].device
        self._plan: _Plan | None = None

    def plan(self, batch: ForwardBatch) -> None:
        page_size = self._pool.page_size
        q_lens = np.diff(batch.cu_seqlens_q)
        extends = [self._plan_extend(batch, int(i)) for i in np.flatnonzero(q_lens > 1)]
        single = np.flatnonzero(q_lens == 1)
        # Lengths in one padded call differ by less than a factor of two.
        sizes = np.frexp(batch.seq_lens[single])[1]
        decodes = [self._plan_decode(batch, single[sizes == size]) for size in np.unique(sizes)]
        pages = self._to_device(batch.slot_mapping // page_size)
        self._plan = _Plan(pages, self._to_device(batch.slot_mapping % page_size), extends, decodes)

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        plan = self._plan
        if plan is None:
            raise RuntimeError("run was called before plan")
        k_pool, v_pool = self._pool.kv(layer)
        k_pool[plan.pages, :, plan.offsets] = k
        v_pool[plan.pages, :, plan.offsets] = v
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for extend in plan.extends:
            out[extend.rows] = self._extend(extend, q, k, v, k_pool, v_pool)
        for decode in plan.decodes:
            out[decode.rows] = self._decode(decode, q, k_pool, v_pool)
        return out

    def _extend(
        self,
        part: _Extend,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        k_pool: torch.Tensor,
        v_pool: torch.Tensor,
    ) -> torch.Tensor:
        if part.tiles is None:
            keys, values = k[part.rows].transpose(0, 1), v[part.rows].transpose(0, 1)
        else:
            keys = _gather(k_pool, part.tiles, 1)[0, :, : part.seq_len]
            values = _gather(v_pool, part.tiles, 1)[0, :, : part.seq_len]
        out = F.scaled_dot_product_attention(
            q[part.rows].transpose(0, 1).unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=part.mask,
            is_causal=part.mask is None,
            scale=self._scale,
            enable_gqa=True,
        )
        return out[0].transpose(0, 1)

    def _decode(
        self, part: _Decode, q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor
    ) -> torch.Tensor:
        b, num_kv_heads = len(part.rows), k_pool.shape[1]
        keys, values = _gather(k_pool, part.tiles, b), _gather(v_pool, part.tiles, b)
        if part.padding is not None:
            sequences, positions = part.padding
            keys[sequences, :, positions] = 0
            values[sequences, :, positions] = 0
        # The query heads of one KV head are the rows of one attention, so that K and V are read once for all.
        queries = q[part.rows].view(b, num_kv_heads, -1, q.shape[-1])
        out = F.scaled_dot_product_attention(
            queries,
            keys[:, :, : part.max_len],
            values[:, :, : part.max_len],
            attn_mask=part.mask,
            scale=self._scale,
        )
        return out.flatten(1, 2)

    def _plan_extend(self, batch: ForwardBatch, i: int) -> _Extend:
        start, end = int(batch.cu_seqlens_q[i]), int(batch.cu_seqlens_q[i + 1])
        q_len, seq_len = end - start, int(batch.seq_lens[i])
        if q_len == seq_len:
            return _Extend(slice(start, end), seq_len, None, None)
        visible = torch.ones(q_len, seq_len, dtype=torch.bool, device=self._device).tril(seq_len - q_len)
        return _Extend(
            slice(start, end), seq_len, self._tiles(batch.page_table[i : i + 1], seq_len), self._mask(visible)
        )

    def _plan_decode(self, batch: ForwardBatch, sequences: Int64Array) -> _Decode:
        lengths = batch.seq_lens[sequences]
        max_len = int(lengths.max())
        rows = self._to_device(batch.cu_seqlens_q[sequences].astype(np.int64))
        tiles = self._tiles(batch.page_table[sequences], max_len)
        if (lengths == max_len).all():
            return _Decode(rows, max_len, tiles, None, None)
        absent = np.arange(max_len) >= lengths[:, None]
        sequence, position = np.nonzero(absent)
        mask = self._mask(self._to_device(~absent))[:, None, None]
        return _Decode(rows, max_len, tiles, mask, (self._to_device(sequence), self._to_device(position)))

    def _tiles(self, page_table: Int32Array, max_len: int) -> torch.Tensor:
        """Tiles that hold the first `max_len` tokens, in the order sequence, head, page."""
        num_kv_heads = self._pool.layout.num_kv_heads
        pages = page_table[:, : -(-max_len // self._pool.page_size)].astype(np.int64)
        tiles = pages[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[:, None]
        return self._to_device(tiles.ravel())

    def _mask(self, visible: torch.Tensor) -> torch.Tensor:
        """0 and -inf: an added mask is faster than one of booleans."""
        mask = torch.zeros(visible.shape, dtype=self._pool.layout.dtype, device=self._device)
        return mask.masked_fill_(~visible, -torch.inf)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def _gather(pool: torch.Tensor, tiles: torch.Tensor, b: int) -> torch.Tensor:
    """A contiguous copy `[b, num_kv_heads, pages * page_size, head_dim]`. pool: `[pages, num_kv_heads, page_size, head_dim]`."""
    num_pages, num_kv_heads, page_size, head_dim = pool.shape
    flat = pool.view(num_pages * num_kv_heads, page_size, head_dim)
    return flat.index_select(0, tiles).view(b, num_kv_heads, -1, head_dim)
