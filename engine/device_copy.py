"""Host arrays on their way to a device."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of the array on the device; on the CPU it shares the array's memory.

    Towards a GPU the host does not wait: torch keeps the pinned memory until the copy is done.
    """
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def upload_into(target: torch.Tensor, array: NDArray[Any]) -> None:
    """As `upload`, into a tensor of the array's shape that is there already, at an address that stays."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if target.device.type == "cuda":
        host = host.pin_memory()
    target.copy_(host, non_blocking=True)
