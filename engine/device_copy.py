"""Copies between host and device that leave both free to go on."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A tensor of the array on the device; on the CPU it shares the array's memory.

    Towards a GPU the host does not wait, as it would for all that runs there if the memory were not pinned: torch keeps
    the pinned memory until the copy is done.
    """
    host = torch.from_numpy(np.ascontiguousarray(array))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def upload_into(target: torch.Tensor, array: NDArray[Any]) -> None:
    """As `upload`, into a tensor of the array's shape that is there already, at an address that stays."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if target.device.type == "cuda":
        host = host.pin_memory()
    target.copy_(host, non_blocking=True)


class Download:
    """A tensor on its way to the host."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._done: torch.cuda.Event | None = None
        self._tensor = tensor
        if tensor.is_cuda:
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            self._tensor.copy_(tensor, non_blocking=True)
            self._done = torch.cuda.current_stream(tensor.device).record_event()

    def wait(self) -> torch.Tensor:
        """The tensor on the host, when it is there. Raises what the device failed with."""
        if self._done is not None:
            self._done.synchronize()
        return self._tensor
