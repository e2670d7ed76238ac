"""One launch of a Triton kernel as a value: what to run, over which grid, with which arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and all that a call of it takes.

    Every kernel of the package has a function that makes one of these and a function that runs it, so that the
    compiled checks compile the very arguments, types and options that a GPU would get.
    """

    kernel: Any
    grid: tuple[int, ...]
    args: dict[str, Any]
    num_warps: int
    num_stages: int = 1
    descriptors: bool = False
    """The kernel makes tensor descriptors, for which Triton wants scratch memory on the device."""

    def run(self) -> None:
        """Start the kernel on the current stream. Reads nothing on the host: safe under graph capture."""
        if 0 in self.grid:
            return
        if self.descriptors:
            triton.set_allocator(_scratch_on(_device_of(self.args)))
        # FP fusion is the default of Triton up to 3.9 and no longer of 3.10: the gates count on it.
        self.kernel[self.grid](
            **self.args, num_warps=self.num_warps, num_stages=self.num_stages, enable_fp_fusion=True
        )


def _device_of(args: dict[str, Any]) -> torch.device:
    return next(value.device for value in args.values() if isinstance(value, torch.Tensor))


def _scratch_on(device: torch.device) -> Callable[[int, int, int | None], torch.Tensor]:
    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    return allocate


_MAJOR, _MINOR = (int(part) for part in triton.__version__.split(".")[:2])
TRITON_VERSION: tuple[int, int] = (_MAJOR, _MINOR)

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether kernels run in Triton's interpreter, as TRITON_INTERPRET said when Triton was imported."""


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n` (n at least 1)."""
    return 1 << (n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)
