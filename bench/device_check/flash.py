"""flash-attn on the timed shapes of our attention, where it is installed: over contiguous K and V, without pages."""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from deeproot.bench.device_check.measure import time_calls
from deeproot.bench.device_check.settings import Setting

_MODULES = {"flash-attn 2": "flash_attn", "flash-attn 3": "flash_attn_interface"}


def flash_times(setting: Setting) -> Iterator[tuple[str, dict[str, Any]]]:
    """Seconds of a chunk behind cached tokens and of a decode step, of each version that is there."""
    for name, module_name in _MODULES.items():
        if importlib.util.find_spec(module_name) is None:
            yield name, {"skipped": "not installed"}
            continue
        attend = importlib.import_module(module_name).flash_attn_with_kvcache
        new, total = setting.timed.prefill[0]
        yield f"{name} prefill", _time(setting, attend, [total], new)
        yield f"{name} decode", _time(setting, attend, setting.timed.decode, 1)


def _time(setting: Setting, attend: Any, totals: list[int], new: int) -> dict[str, Any]:
    shape, batch, device = setting.shape(128, 64), len(totals), setting.device
    kv = (batch, max(totals), shape.kv_heads, shape.head_dim)
    q = torch.randn(batch, new, shape.heads, shape.head_dim, device=device).to(shape.dtype)
    lengths = torch.tensor(totals, dtype=torch.int32, device=device)
    num_bytes = 4 * kv[0] * kv[1] * kv[2] * kv[3]
    calls: list[Callable[[], object]] = []
    for _ in range(min(max(-(-2 * setting.l2_bytes // num_bytes), 1), 12)):
        k, v = (torch.randn(kv, device=device).to(shape.dtype) for _ in range(2))
        calls.append(partial(attend, q, k, v, cache_seqlens=lengths, causal=True))
    return {"seconds": time_calls(calls, device)}
