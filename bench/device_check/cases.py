"""What a kernel is checked and timed with: fresh inputs, poisoned outputs, the answer in float64, the least cost."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from deeproot.kernels.cost import Cost


@dataclass(frozen=True, slots=True)
class Work:
    """One call of a kernel over tensors of its own."""

    run: Callable[[], None]
    outputs: dict[str, torch.Tensor]
    """What the call writes; NaN (-1 where whole numbers) before it, at least where it must write."""
    wanted: Callable[[], dict[str, torch.Tensor]]
    """The outputs by float64 on the CPU; NaN where nothing may be written."""
    cost: Cost
    num_bytes: int
    """Of the tensors that a call reads and writes, to know how many sets of them exceed the L2."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel in one form. `make(generator, timed)`: timed inputs are large, the others small and ragged."""

    name: str
    tolerance: float
    """Relative norm of the difference; of whole numbers the share that differs."""
    make: Callable[[torch.Generator, bool], Work]


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of NaN, or of -1 where there is none."""
    out = torch.empty(shape, dtype=dtype, device=device)
    if dtype.is_floating_point and dtype.itemsize == 1:
        out.view(torch.uint8).fill_(0x7F)  # e4m3's NaN
        return out
    return out.fill_(float("nan") if dtype.is_floating_point else -1)


def size_of(*tensors: torch.Tensor) -> int:
    """Bytes of the tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
