"""Copies between host and device that leave both free to go on."""

import numpy as np
import torch


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A copy on the device (on a CPU the array itself), in order with what is launched there.

    A plain copy to a GPU waits for all that runs there; one from pinned memory does not. torch keeps the pinned memory
    until the copy is done.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def copy_into(target: torch.Tensor, array: np.ndarray) -> None:
    """As `to_device`, into a tensor of the array's shape that is there already, at an address that stays."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if target.device.type == "cuda":
        host = host.pin_memory()
    target.copy_(host, non_blocking=True)


class HostCopy:
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
