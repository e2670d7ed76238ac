"""Weights that stay quantised: rows in groups of 32 values, in the forms of GGUF whose arithmetic the CPU's products know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

GROUP = 32
"""Neighbouring values of a row that share a scale."""
GroupedType: TypeAlias = Literal["Q4_0", "Q4_1", "Q8_0"]
"""As GGUF calls them."""
GROUP_BYTES: dict[GroupedType, int] = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
"""Of a group: a float16 scale, of Q4_1 the float16 least value, and the quants: of 4 bits, value i and i + 16 in a byte."""


def grouped_type(name: str) -> GroupedType | None:
    """The type of that name; None if its values do not stand in such groups."""
    return next((kind for kind in GROUP_BYTES if kind == name), None)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """A weight `[n, k]` as a GGUF file holds it."""

    type: GroupedType
    data: torch.Tensor
    """`[n, bytes of a row]` uint8, on the CPU."""

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.data), self.data.shape[1] // GROUP_BYTES[self.type] * GROUP

    def numel(self) -> int:
        n, k = self.shape
        return n * k

    def dequantised(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """`[n, k]`, a new tensor."""
        groups = self.data.reshape(-1, GROUP_BYTES[self.type])
        scale = groups[:, :2].contiguous().view(torch.float16).float()
        if self.type == "Q8_0":
            values = scale * groups[:, 2:].contiguous().view(torch.int8)
        else:
            packed = groups[:, -GROUP // 2 :]
            quants = torch.cat((packed & 15, packed >> 4), dim=1).float()
            if self.type == "Q4_0":
                values = scale * (quants - 8)
            else:
                values = scale * quants + groups[:, 2:4].contiguous().view(torch.float16).float()
        return values.reshape(self.shape).to(dtype)


Weight = torch.Tensor | GroupedRows
"""`[out_features, in_features]`."""


def joined(parts: Sequence[GroupedRows]) -> GroupedRows | None:
    """One weight of the rows of several; None if they differ in type."""
    if len({part.type for part in parts}) != 1:
        return None
    if len(parts) == 1:
        return parts[0]
    return GroupedRows(parts[0].type, torch.cat([part.data for part in parts]))


def dense(weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """The weight for torch's products: dequantised anew at each call if it is grouped, which is slow."""
    return weight.dequantised(dtype) if isinstance(weight, GroupedRows) else weight
