"""Weights that stay quantised: rows in groups of 32 values, in the forms of GGUF whose arithmetic the CPU's products know."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

GROUP = 32
"""Neighbouring values of a row that share a scale."""
GROUPED_TYPES = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """A weight `[n, k]` as a GGUF file holds it."""

    type: GGMLQuantizationType
    """Of GROUPED_TYPES."""
    data: torch.Tensor
    """`[n, bytes of a row]` uint8, on the CPU."""

    @property
    def shape(self) -> tuple[int, int]:
        group, num_bytes = GGML_QUANT_SIZES[self.type]
        return len(self.data), self.data.shape[1] // num_bytes * group

    def numel(self) -> int:
        n, k = self.shape
        return n * k

    def dequantised(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """`[n, k]`, a new tensor."""
        with np.errstate(all="ignore"):  # a damaged file's scales may be infinite
            values = quants.dequantize(self.data.numpy(), self.type)
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(dtype)


Weight = torch.Tensor | GroupedRows
"""`[out_features, in_features]`."""


def joined(parts: Sequence[GroupedRows]) -> GroupedRows | None:
    """One weight of the rows of several; None if they differ in type."""
    if len({part.type for part in parts}) != 1:
        return None
    if len(parts) == 1:
        return parts[0]
    return GroupedRows(parts[0].type, torch.cat([part.data for part in parts]))


def rounded_to_int8(weight: torch.Tensor) -> GroupedRows | None:
    """The weight `[n, k]` in Q8_0: 8 bits and a scale for each 32 values. None if k is no multiple of that."""
    if weight.dim() != 2 or weight.shape[1] % GROUP:
        return None
    kind = GGMLQuantizationType.Q8_0
    return GroupedRows(kind, torch.from_numpy(quants.quantize(weight.float().numpy(), kind)))


def dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight for torch's products: dequantised anew at each call if it is grouped, which is slow."""
    return weight.dequantised(dtype) if isinstance(weight, GroupedRows) else weight
