"""The attention kernels and their twins, called on a made pool."""

import math
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, settings

from deeproot.kernels import reference
from deeproot.kernels.cascade import split_decode
from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.kernels.paged_prefill import paged_prefill

GATHER = PrefillConfig("gather", 32, 32, 4, 2)
TILE = PrefillConfig("descriptor", 32, 16, 4, 2)
SPECIALISED = PrefillConfig("specialised", 32, 16, 4, 2)
CONFIGS = {"gather": GATHER, "descriptor": TILE, "specialised": SPECIALISED}
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def run_prefill(paged: Any, config: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    """(output, LSE) of the kernel, written into NaN."""
    heads = paged.q.shape[0] * paged.group
    out = torch.full((paged.q.shape[1], heads, paged.q.shape[3]), math.nan, dtype=paged.q.dtype)
    lse = torch.full(out.shape[:2], math.nan)
    items, count = paged.prefill_items(config.block_m)
    paged_prefill(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=paged.q.shape[3] ** -0.5, window=window, soft_cap=soft_cap, config=config, **paged.scales(),
    )  # fmt: skip
    return out, lse


def wanted_prefill(paged: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    """(output, LSE) of the twin in float64."""
    heads = paged.q.shape[0] * paged.group
    out = torch.empty(paged.q.shape[1], heads, paged.q.shape[3], dtype=torch.float64)
    lse = torch.empty(out.shape[:2], dtype=torch.float64)
    items, count = paged.prefill_items(1 << 20)
    reference.paged_prefill(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=paged.q.shape[3] ** -0.5, window=window, soft_cap=soft_cap, dtype=torch.float64, **paged.scales(),
    )  # fmt: skip
    return out, lse


def run_decode(
    paged: Any,
    config: Any,
    *,
    splits: int,
    window: int = 0,
    soft_cap: float = 0.0,
    split_tokens: int = 0,
    multiprocessors: int = 8,
) -> Any:
    heads, head_dim = paged.q.shape[0] * paged.group, paged.q.shape[3]
    items, count = paged.decode_items()
    capacity = items.shape[0]
    partial = torch.full((splits, capacity, heads, head_dim), math.nan)
    partial_lse = torch.full(partial.shape[:3], math.nan)
    used = torch.full((capacity,), 1 << 20, dtype=torch.int32)
    out = torch.full((paged.q.shape[1], heads, head_dim), math.nan, dtype=paged.q.dtype)
    lse = torch.full(out.shape[:2], math.nan)
    split_decode(
        paged.q, paged.k, paged.v, paged.table, items, count, partial, partial_lse, used, out, lse,
        softmax_scale=head_dim**-0.5, window=window, soft_cap=soft_cap, split_tokens=split_tokens, config=config,
        multiprocessors=multiprocessors, **paged.scales(),
    )  # fmt: skip
    return out, lse, used


def wanted_decode(paged: Any, *, window: int = 0, soft_cap: float = 0.0) -> Any:
    heads, head_dim = paged.q.shape[0] * paged.group, paged.q.shape[3]
    items, count = paged.decode_items()
    out = torch.full((paged.q.shape[1], heads, head_dim), math.nan, dtype=torch.float64)
    lse = torch.full(out.shape[:2], math.nan, dtype=torch.float64)
    reference.paged_decode(
        paged.q, paged.k, paged.v, paged.table, items, count, out, lse,
        softmax_scale=head_dim**-0.5, window=window, soft_cap=soft_cap, dtype=torch.float64, **paged.scales(),
    )  # fmt: skip
    return out, lse


FEW = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

DECODE = {
    "gather": DecodeConfig("gather", 32, 8, 4, 2),
    "descriptor": DecodeConfig("descriptor", 16, 8, 4, 2),
}
