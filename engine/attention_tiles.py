"""Paged attention in which a row's result depends on that row and on what it sees alone, bit for bit.

Keys are taken in tiles of a fixed size that begin at multiples of it, from the first position on; rows in groups of a
fixed number. So every product and every sum has the same shape and the same order whatever else a batch holds: a tile that
a row does not see multiplies what it has by one and adds zero. Float32 throughout. For `fixed_rows`: batches of exactly
that many tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.layers import soft_cap
from deeproot.engine.paged_rows import PagedRows
from deeproot.engine.transfer import to_device

TILE = 128
"""Keys of a tile; a multiple of every page size."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One sequence's tokens of a piece."""

    rows: slice
    """In the piece."""
    pages: torch.Tensor
    """`[pages]`, whole tiles; past the sequence's end any."""
    seq_len: int
    positions: torch.Tensor
    """`[rows of a piece]` of its tokens; those that fill up are before the first."""


class TileAttention:
    """See AttentionBackend; never captured."""

    name = "torch"

    def __init__(
        self,
        pool: KVPool,
        scale: float | None = None,
        cap: float | None = None,
        windows: Sequence[int | None] = (),
    ) -> None:
        """scale, cap, windows: as in TorchAttention. Raises ValueError for pages that do not divide a tile."""
        if TILE % pool.page_size:
            raise ValueError(f"pages of {pool.page_size} tokens do not divide a tile of {TILE}")
        self._pool = pool
        self._scale = pool.layout.head_dim**-0.5 if scale is None else scale
        self._cap = cap
        self._windows = list(windows) or [None] * pool.layout.num_layers
        self._device = pool.kv(0)[0].device
        self._plan: tuple[torch.Tensor, torch.Tensor, list[_Part]] | None = None

    def plan(self, batch: ForwardBatch) -> None:
        page_size = self._pool.page_size
        bounds = batch.cu_seqlens_q
        parts = [
            self._part(batch, i, slice(int(bounds[i]), int(bounds[i + 1]))) for i in range(len(bounds) - 1)
        ]
        slots = to_device(batch.slot_mapping, self._device)
        self._plan = slots // page_size, slots % page_size, parts

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self._plan is None:
            raise RuntimeError("run was called before plan")
        pages, offsets, parts = self._plan
        k_rows, v_rows = map(PagedRows, self._pool.kv(layer), self._pool.scales(layer))
        k_rows.write(k, pages, offsets)
        v_rows.write(v, pages, offsets)
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for part in parts:
            out[part.rows] = self._attend(part, q, k_rows, v_rows, self._windows[layer]).to(q.dtype)
        return out

    def _part(self, batch: ForwardBatch, i: int, rows: slice) -> _Part:
        seq_len, size = int(batch.seq_lens[i]), len(batch.input_ids)
        wanted = -(-seq_len // TILE) * (TILE // self._pool.page_size)
        columns = np.minimum(np.arange(wanted), -(-seq_len // self._pool.page_size) - 1)
        positions = np.full(size, -1, np.int64)
        positions[: rows.stop - rows.start] = batch.positions[rows]
        return _Part(
            rows,
            to_device(batch.page_table[i, columns].astype(np.int64), self._device),
            seq_len,
            to_device(positions, self._device),
        )

    def _attend(
        self, part: _Part, q: torch.Tensor, k_rows: PagedRows, v_rows: PagedRows, window: int | None
    ) -> torch.Tensor:
        """`[rows, num_qo_heads, head_dim]` float32."""
        (size, num_heads, dim), num_kv_heads = q.shape, k_rows.num_kv_heads
        group, count = num_heads // num_kv_heads, part.rows.stop - part.rows.start
        queries = torch.zeros(num_kv_heads, size * group, dim, device=q.device)
        mine = q[part.rows].float().view(count, num_kv_heads, group, dim)
        queries.view(num_kv_heads, size, group, dim)[:, :count] = mine.transpose(0, 1)
        seen_from = part.positions.repeat_interleave(group)[:, None]
        top = torch.full((num_kv_heads, size * group, 1), -torch.inf, device=q.device)
        total = torch.zeros_like(top)
        out = torch.zeros_like(queries)
        first = 0 if window is None else max(0, part.seq_len - count - window + 1) // TILE
        for tile in range(first, -(-part.seq_len // TILE)):
            keys, values = self._tile(part, k_rows, tile), self._tile(part, v_rows, tile)
            scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(self._scale)
            if self._cap is not None:
                scores = soft_cap(scores, self._cap)
            at = torch.arange(tile * TILE, (tile + 1) * TILE, device=q.device)
            hidden = at > seen_from
            if window is not None:
                hidden |= at <= seen_from - window
            scores.masked_fill_(hidden, -torch.inf)
            higher = torch.maximum(top, scores.amax(-1, keepdim=True))
            # Of a row that has seen nothing yet all weights are 0, not NaN.
            finite = higher.masked_fill(higher == -torch.inf, 0.0)
            weights, kept = torch.exp(scores - finite), torch.exp(top - finite)
            total = total * kept + weights.sum(-1, keepdim=True)
            out = out * kept + torch.bmm(weights, values)
            top = higher
        whole = (out / total).view(num_kv_heads, size, group, dim)[:, :count]
        return whole.transpose(0, 1).reshape(count, num_heads, dim)

    def _tile(self, part: _Part, rows: PagedRows, tile: int) -> torch.Tensor:
        """`[num_kv_heads, TILE, head_dim]` float32, zero past the sequence's end."""
        per_tile = TILE // self._pool.page_size
        pages = part.pages[tile * per_tile : (tile + 1) * per_tile]
        heads = torch.arange(rows.num_kv_heads, device=pages.device)
        tiles = (pages[None, :] * rows.num_kv_heads + heads[:, None]).flatten()
        found = rows.gather(tiles, 1, torch.float32)[0].float()
        inside = part.seq_len - tile * TILE
        if inside < TILE:
            found[:, inside:] = 0
        return found
