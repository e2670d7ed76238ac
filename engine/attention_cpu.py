"""Paged attention by the C++ library: pages are read where they lie, by torch's threads."""

from collections.abc import Sequence

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch
from deeproot.engine.kv_pool import KVPool
from deeproot.kernels.cpu.native import KINDS, AttentionStruct, BatchStruct, CpuLibrary


class PlannedBatch:
    """A batch as the library reads it; keeps the arrays alive to which the structure points."""

    def __init__(self, batch: ForwardBatch, page_size: int) -> None:
        self.page_table = np.ascontiguousarray(batch.page_table, np.int32)
        self.starts = np.ascontiguousarray(batch.cu_seqlens_q, np.int32)
        self.lengths = np.ascontiguousarray(batch.seq_lens, np.int32)
        self.slots = np.ascontiguousarray(batch.slot_mapping, np.int64)
        self.positions = np.ascontiguousarray(batch.positions, np.int64)
        self.struct = BatchStruct(
            len(self.slots),
            len(self.lengths),
            page_size,
            self.page_table.shape[1],
            *(
                array.ctypes.data
                for array in (self.page_table, self.starts, self.lengths, self.slots, self.positions)
            ),
        )


class CpuAttention:
    """See AttentionBackend. Nothing is captured on a CPU."""

    name = "cpu"

    def __init__(
        self,
        pool: KVPool,
        num_qo_heads: int,
        native: CpuLibrary,
        scale: float | None = None,
        cap: float | None = None,
        windows: Sequence[int | None] = (),
    ) -> None:
        """pool: of the model's own dtype, on the CPU. scale, cap, windows: as in TorchAttention."""
        self.pool = pool
        self.native = native
        layout = pool.layout
        self.scale = layout.head_dim**-0.5 if scale is None else scale
        self.cap = cap or 0.0
        self.windows = [window or 0 for window in windows] or [0] * layout.num_layers
        self._num_qo_heads = num_qo_heads
        self._batch: PlannedBatch | None = None

    def plan(self, batch: ForwardBatch) -> None:
        self._batch = PlannedBatch(batch, self.pool.page_size)

    @property
    def planned(self) -> PlannedBatch:
        """Of the latest `plan`. Raises RuntimeError if there was none."""
        if self._batch is None:
            raise RuntimeError("run was called before plan")
        return self._batch

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, layout = self.planned, self.pool.layout
        q, k, v = map(_heads_together, (q, k, v))
        out = torch.empty(q.shape, dtype=q.dtype)
        k_pool, v_pool = self.pool.kv(layer)
        attention = AttentionStruct(
            KINDS[layout.dtype],
            self._num_qo_heads,
            layout.num_kv_heads,
            layout.head_dim,
            self.windows[layer],
            self.scale,
            self.cap,
            q.data_ptr(),
            q.stride(0),
            k_pool.data_ptr(),
            v_pool.data_ptr(),
            out.data_ptr(),
            out.stride(0),
        )
        self.native.attention(attention, batch.struct, k, v)
        return out


def _heads_together(x: torch.Tensor) -> torch.Tensor:
    """x: `[T, heads, head_dim]`. The same, a token's heads one after another in memory."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
