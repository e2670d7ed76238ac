"""Rows in groups, against the gguf package's reading of them."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from deeproot.engine.grouped_rows import GROUP_BYTES, GroupedRows, GroupedType, grouped_type, joined


def random_rows(kind: GroupedType, n: int, groups: int) -> GroupedRows:
    rng = np.random.default_rng(n * 100 + groups)
    data = rng.integers(0, 256, (n, groups, GROUP_BYTES[kind]), dtype=np.uint8)
    # Scales and least values that are numbers; every other byte may be anything.
    numbers = rng.normal(size=(n, groups, 2)).astype(np.float16).view(np.uint8).reshape(n, groups, 4)
    data[..., : 4 if kind == "Q4_1" else 2] = numbers[..., : 4 if kind == "Q4_1" else 2]
    return GroupedRows(kind, torch.from_numpy(data.reshape(n, -1)))


@pytest.mark.parametrize("kind", GROUP_BYTES)
@pytest.mark.parametrize(("n", "groups"), [(1, 1), (3, 2), (64, 18)])
def test_values_are_those_of_the_format(kind: GroupedType, n: int, groups: int) -> None:
    rows = random_rows(kind, n, groups)
    meant = gguf.quants.dequantize(rows.data.numpy(), GGMLQuantizationType[kind])
    assert rows.shape == (n, 32 * groups)
    assert torch.equal(rows.dequantised(), torch.from_numpy(np.array(meant, np.float32)))
    assert rows.dequantised(torch.bfloat16).dtype == torch.bfloat16


def test_rows_of_one_type_can_be_joined() -> None:
    one, other = random_rows("Q4_0", 2, 3), random_rows("Q4_0", 5, 3)
    both = joined([one, other])
    assert both is not None
    assert torch.equal(both.dequantised(), torch.cat([one.dequantised(), other.dequantised()]))
    assert joined([one, random_rows("Q4_1", 2, 3)]) is None


def test_other_types_are_none_of_these() -> None:
    assert [grouped_type(name) for name in ("Q8_0", "Q6_K", "F32")] == ["Q8_0", None, None]
