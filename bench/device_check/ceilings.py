"""What the device does at best in plain copies and matrix products: no kernel can be asked for more."""

from typing import Any

import torch

from deeproot.bench.device_check.measure import time_calls


def measure_ceilings(device: torch.device, dtype: torch.dtype, copy_bytes: int, side: int) -> dict[str, Any]:
    """Bytes a second read and written by a copy, FLOP a second of a square product of random data."""
    source = torch.randint(0, 255, (copy_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_seconds = time_calls([lambda: target.copy_(source)], device)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    product_seconds = time_calls([lambda: torch.mm(a, b, out=out)], device)
    return {
        "copy_bytes_per_s": 2 * copy_bytes / copy_seconds,
        "matmul_flops": 2 * side**3 / product_seconds,
        "matmul_side": side,
        "dtype": str(dtype).removeprefix("torch."),
    }
