"""Products with weights in e4m3 that have a scale a tile of 128 x 128, by Hopper's fp8 units.

The other factor is rounded to e4m3, too, with a scale for each 128 neighbouring values of a row. Layouts are those that torch's
`scaled_mm` wants. It has not run on a GPU yet: `fp8_problem` tries it on one before a model relies on it.
"""

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from deeproot.kernels.reference import FP8_MAX

TILE = 128
_HOPPER = (9, 0)
_TOLERANCE = 0.02
"""Relative error of the trial: bf16 results are within 0.004, a wrong scale is far outside."""


def kept_scales(scales: torch.Tensor) -> torch.Tensor:
    """Scales of a weight `[n, k]`, `[n / 128, k / 128]`, as `fp8_product` wants them: `[k / 128 up to 4s, n / 128]`."""
    rows, columns = scales.shape
    padded = scales.new_zeros(rows, -(-columns // 4) * 4, dtype=torch.float32)
    padded[:, :columns] = scales
    return padded.t()


def round_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x: `[m, k]`. Returns it in e4m3, and what each 128 values of a row must be multiplied by: `[m, k / 128]` float32."""
    groups = x.float().reshape(len(x), -1, TILE)
    largest = groups.abs().amax(-1)
    scales = torch.where(largest > 0, largest / FP8_MAX, torch.ones_like(largest))
    rounded = (groups / scales[..., None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    # Column by column, also where there is a single row, of which contiguous() would think that it is.
    by_column = scales.new_empty(scales.shape[::-1])
    return rounded.flatten(1), by_column.copy_(scales.t()).t()


def fp8_product(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x @ weight.T`. x: `[m, k]` bfloat16; weight: `[n, k]` e4m3, n and k multiples of 128; scales: of `kept_scales`."""
    rounded, factors = round_rows(x)
    product: torch.Tensor = F.scaled_mm(
        rounded,
        weight.t(),
        factors,
        ScalingType.BlockWise1x128,
        scales,
        ScalingType.BlockWise128x128,
        output_dtype=x.dtype,
    )
    return product


def fp8_problem(device: torch.device, dtype: torch.dtype, tile: tuple[int, int]) -> str | None:
    """Why products are not to be taken in fp8; None if a trial on the device gave the right numbers."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != _HOPPER:
        return "the device is not a Hopper GPU (sm_90)"
    if dtype != torch.bfloat16 or tile != (TILE, TILE):
        return f"only bfloat16 with tiles of {TILE} x {TILE} is set up for that"
    try:
        error = _trial(device)
    except RuntimeError as problem:
        return f"torch cannot do it here ({str(problem).splitlines()[0]})"
    return None if error < _TOLERANCE else f"the trial was off by {error:.3f} of the result's norm"


def _trial(device: torch.device) -> float:
    """The greatest error of a few products against float32 ones of the same rounded factors."""
    n, k = 2 * TILE, 3 * TILE
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(n, k, generator=generator).to(device, torch.float8_e4m3fn)
    scales = (torch.rand(n // TILE, k // TILE, generator=generator) + 0.5).to(device)
    wide = weight.float() * scales.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)
    errors = []
    for m in (1, 3, 130):
        x = torch.randn(m, k, generator=generator).to(device, torch.bfloat16)
        rounded, factors = round_rows(x)
        wanted = rounded.float() * factors.repeat_interleave(TILE, 1) @ wide.t()
        got = fp8_product(x, weight, kept_scales(scales)).float()
        errors.append(float((got - wanted).norm() / wanted.norm()))
    return max(errors)
