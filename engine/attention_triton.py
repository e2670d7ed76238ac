"""Paged attention by the Triton kernels.

`plan` makes work lists on the host and copies them into buffers that live as long as the backend; `run` only launches
kernels, over grids that depend on what `plan` returned, and reads nothing on the host. A layer is: new K and V into
their slots and q packed by KV head; decodes in splits of their KV range, extends by tiles of rows, either with shared
pages read once; states merged by their LSE.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deeproot.engine.attention import BatchLimits
from deeproot.engine.batch import ForwardBatch
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.shared_prefix import AttentionSizes
from deeproot.engine.transfer import to_device
from deeproot.engine.triton_buffers import PlanBuffers
from deeproot.engine.work_lists import Cascade, ExtendLists, ListSettings, make_lists
from deeproot.kernels.cascade import cascade_decode, cascade_prefill, split_decode
from deeproot.kernels.configs import DecodeConfig, PrefillConfig, decode_config, prefill_config
from deeproot.kernels.devices import Device, device_named
from deeproot.kernels.launch import TRITON_VERSION, cdiv, next_power_of_2
from deeproot.kernels.paged_prefill import paged_prefill
from deeproot.kernels.store_kv import store_kv

_MAX_SPLITS = 64
_SPLIT_TOKENS = 256
"""The kernel makes no split shorter than this."""
_INTERPRETED_MULTIPROCESSORS = 4
"""What the interpreter stands for: few, since each program costs it milliseconds."""


@dataclass(frozen=True, slots=True)
class TritonTuning:
    """What is chosen automatically, to be set in tests and measurements. None: by table or device."""

    cascade: Cascade = "auto"
    min_piece: int = 1024
    """Tokens of a KV range that are worth a piece of their own when an extend has too few rows to fill the device."""
    prefill: PrefillConfig | None = None
    decode: DecodeConfig | None = None
    multiprocessors: int | None = None
    one_kernel: bool = False
    """Compute tokens that come alone as those that come together."""


ROW_BY_ROW = TritonTuning(cascade="never", min_piece=2**30, one_kernel=True)
"""One kernel, one item for all that a row sees: its result is the same whatever else a batch holds."""


@dataclass(frozen=True, slots=True)
class _Extends:
    """Items of a step's extends on the device; new tensors each time, since such steps are never captured."""

    whole: torch.Tensor
    num_whole: torch.Tensor
    parts: torch.Tensor | None
    num_parts: torch.Tensor
    levels: int


@dataclass(frozen=True, slots=True)
class _Step:
    num_tokens: int
    num_owned: int
    """Tokens of sequences; what stands behind them only fills the batch."""
    num_decodes: int
    prefix_levels: int
    extends: _Extends | None
    order: tuple[torch.Tensor, torch.Tensor] | None
    """Token at each place of the step's order, and place of each token."""


class TritonAttention:
    """See AttentionBackend."""

    name = "triton"

    def __init__(
        self,
        pool: KVPool,
        num_qo_heads: int,
        limits: BatchLimits,
        dtype: torch.dtype,
        scale: float | None = None,
        cap: float | None = None,
        windows: Sequence[int | None] = (),
        tuning: TritonTuning | None = None,
    ) -> None:
        """pool: of `dtype`, in which the model computes, or e4m3. scale, cap, windows: as in TorchAttention.

        Raises ValueError for head dims, pages or groups for which the kernels have no configuration.
        """
        layout, tuning = pool.layout, tuning or TritonTuning()
        self._pool, self._dtype, self._num_qo_heads = pool, dtype, num_qo_heads
        self._device = pool.kv(0)[0].device
        self._scale = layout.head_dim**-0.5 if scale is None else scale
        self._cap = cap or 0.0
        self._windows = [window or 0 for window in windows] or [0] * layout.num_layers
        fp8 = layout.dtype.itemsize == 1
        self._prefill = tuning.prefill or prefill_config(
            layout.head_dim, layout.page_size, fp8, TRITON_VERSION
        )
        self._decode = tuning.decode or decode_config(
            layout.head_dim, layout.page_size, num_qo_heads // layout.num_kv_heads, TRITON_VERSION
        )
        self._multiprocessors = tuning.multiprocessors or _multiprocessors(self._device)
        self._max_splits = min(_MAX_SPLITS, next_power_of_2(cdiv(limits.max_model_len, _SPLIT_TOKENS)))
        sizes = AttentionSizes(num_qo_heads, layout.num_kv_heads, layout.head_dim, layout.dtype.itemsize)
        self._settings = ListSettings(
            sizes=sizes,
            page_size=layout.page_size,
            block_m=self._prefill.block_m,
            align=max(layout.page_size, self._prefill.block_n, self._decode.block_n),
            programs=self._multiprocessors * self._prefill.per_sm,
            min_piece=tuning.min_piece,
            cascade=tuning.cascade,
            one_kernel=tuning.one_kernel,
            device=_cost_device(self._device),
        )
        self._buffers = PlanBuffers(limits, self._settings, self._device)
        # q and k come with their rotary embedding: the kernel that packs and stores them turns them by nothing.
        self._no_turn = torch.zeros(1, layout.head_dim, device=self._device)
        self._no_turn[:, : layout.head_dim // 2] = 1
        self._positions = torch.zeros(self._buffers.max_tokens, dtype=torch.int64, device=self._device)
        self._step: _Step | None = None

    def plan(self, batch: ForwardBatch) -> Hashable | None:
        lists = make_lists(batch, self._settings)
        self._buffers.fill(batch, lists)
        num_tokens = len(batch.input_ids)
        levels = lists.decodes.levels if lists.decodes is not None else 0
        order = None
        if lists.order is not None:
            order = self._buffers.order[:num_tokens], self._buffers.place[:num_tokens]
        extends = None if lists.extends is None else self._upload_extends(lists.extends)
        self._step = _Step(num_tokens, int(batch.cu_seqlens_q[-1]), lists.num_decodes, levels, extends, order)
        return ("decode", levels) if extends is None else None

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        step = self._step
        if step is None:
            raise RuntimeError("run was called before plan")
        if step.order is not None:
            q = q.index_select(0, step.order[0])
        packed = self._store(layer, q, k, v)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)
        out[step.num_owned :] = 0
        n = step.num_decodes
        if n:
            self._run_decodes(layer, step, packed[:, :n], out[:n], lse[:n])
        if step.extends is not None:
            self._run_extends(layer, step.extends, packed[:, n:], out[n:], lse[n:])
        return out if step.order is None else out.index_select(0, step.order[1])

    def _store(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write K and V; returns q packed as `[num_kv_heads, T, group, head_dim]`."""
        num_tokens, num_heads, head_dim = q.shape
        packed = q.new_empty(k.shape[1], num_tokens, num_heads // k.shape[1], head_dim)
        positions, slots = self._positions[:num_tokens], self._buffers.slots[:num_tokens]
        store_kv(
            q, k, v, self._no_turn, positions, slots, packed, *self._pool.kv(layer), **self._scales(layer)
        )
        return packed

    def _run_decodes(
        self, layer: int, step: _Step, q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        buffers, n = self._buffers, step.num_decodes
        levels = 0 if self._windows[layer] else step.prefix_levels
        partial, partial_lse = self._partial(levels + self._splits(n), out)
        used = torch.empty(n, dtype=torch.int32, device=out.device)
        pools = *self._pool.kv(layer), buffers.page_table
        states = partial, partial_lse, used, out, lse
        options = self._options(layer, config=self._decode)
        if not levels:
            split_decode(q, *pools, buffers.whole[:n], buffers.num_decodes, *states, **options)
            return
        cascade_decode(
            q,
            *pools,
            buffers.prefixes,
            buffers.num_prefixes,
            buffers.behind[:n],
            buffers.num_decodes,
            *states,
            prefix_levels=levels,
            prefix_config=self._prefill,
            **options,
        )

    def _run_extends(
        self, layer: int, extends: _Extends, q: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        pools = *self._pool.kv(layer), self._buffers.page_table
        options = self._options(layer, config=self._prefill)
        if extends.parts is None or self._windows[layer]:
            paged_prefill(q, *pools, extends.whole, extends.num_whole, out, lse, **options)
            return
        partial, partial_lse = self._partial(extends.levels, out)
        cascade_prefill(
            q, *pools, extends.parts, extends.num_parts, partial, partial_lse, out, lse, **options
        )

    def _partial(self, levels: int, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        partial = torch.empty((levels, *out.shape), dtype=torch.float32, device=out.device)
        return partial, torch.empty(partial.shape[:3], dtype=torch.float32, device=out.device)

    def _splits(self, num_decodes: int) -> int:
        """At least as many as the kernel makes; powers of two, since it is compiled anew for each."""
        wanted = cdiv(2 * self._multiprocessors, num_decodes * self._pool.layout.num_kv_heads)
        return min(next_power_of_2(wanted), self._max_splits)

    def _scales(self, layer: int) -> dict[str, Any]:
        k_scale, v_scale = self._pool.scales(layer)
        return {"k_scale": k_scale, "v_scale": v_scale}

    def _options(self, layer: int, config: PrefillConfig | DecodeConfig) -> dict[str, Any]:
        return {
            "softmax_scale": self._scale,
            "window": self._windows[layer],
            "soft_cap": self._cap,
            "config": config,
            "multiprocessors": self._multiprocessors,
            **self._scales(layer),
        }

    def _upload_extends(self, lists: ExtendLists) -> _Extends:
        def number(items: torch.Tensor) -> torch.Tensor:
            return torch.full((1,), len(items), dtype=torch.int32, device=self._device)

        whole = to_device(lists.whole, self._device)
        parts = None if lists.parts is None else to_device(lists.parts, self._device)
        return _Extends(whole, number(whole), parts, number(whole if parts is None else parts), lists.levels)


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _INTERPRETED_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _cost_device(device: torch.device) -> Device:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return device_named(name)
