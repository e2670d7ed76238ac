"""Products with weights in groups against float64 of what the gguf package says that the weights are."""

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.cpu_forms import matrix_forms, needs_bf16

from deeproot.kernels.cpu.native import (
    GROUPED_FORMS,
    CpuLibrary,
    DecoderStruct,
    Matrix,
    WeightStruct,
    packed_bytes,
)

pytestmark = needs_bf16
MATRIX = matrix_forms("avx512_bf16")
FORMS = list(GROUPED_FORMS)
FEW = 12
"""Rows that are multiplied as whole numbers; more are multiplied with weights rounded to bfloat16."""

Product = Callable[[torch.Tensor], torch.Tensor]


def stored(n: int, k: int, form: str, seed: int = 0) -> np.ndarray:
    """A random weight as a file holds it, `[n, bytes of a row]`."""
    values = np.random.default_rng(seed).normal(0.1, 1, (n, k)).astype(np.float32)
    return gguf.quants.quantize(values, GGMLQuantizationType[form])


def meant(rows: np.ndarray, form: str) -> torch.Tensor:
    with np.errstate(all="ignore"):
        return torch.from_numpy(np.array(gguf.quants.dequantize(rows, GGMLQuantizationType[form])))


def product(library: CpuLibrary, rows: np.ndarray, k: int, form: str) -> Product:
    """What multiplies by it: a model that is only a head."""
    n = len(rows)
    packed = torch.full((packed_bytes((n, k), GROUPED_FORMS[form]),), 255, dtype=torch.uint8)
    row_of = torch.full((-(-n // 32) * 32,), -1, dtype=torch.int32)
    row_of[:n] = torch.arange(n, dtype=torch.int32)
    library.pack_grouped(torch.from_numpy(rows), row_of, (n, k), GROUPED_FORMS[form], packed)
    return _head(library, WeightStruct(packed.data_ptr(), None, n, k, GROUPED_FORMS[form]), packed)


def dense_product(library: CpuLibrary, weight: torch.Tensor) -> Product:
    n, k = weight.shape
    packed = torch.zeros(-(-n // 32) * 32 * k, dtype=torch.bfloat16)
    library.pack(weight, torch.arange(n, dtype=torch.int32), packed)
    return _head(library, WeightStruct(packed.data_ptr(), None, n, k), packed)


def _head(library: CpuLibrary, weight: WeightStruct, packed: torch.Tensor) -> Product:
    model = DecoderStruct(hidden=weight.k, head=weight)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        out = torch.full((len(x), weight.n), torch.nan)
        library.logits(model, x, out)
        assert len(packed)  # which the structure points to, is alive
        return out

    return multiply


def inputs(rows: int, k: int) -> torch.Tensor:
    """Rows of very different sizes, as activations are; one is zeros."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, k, generator=generator) * 10 ** torch.linspace(-3, 3, rows)[:, None]
    x[rows // 2, : k // 2] = 0
    return x.bfloat16()


def error(actual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """The greatest, relative to the sum of the sizes of what is added up, in float64."""
    x, weight = x.double(), weight.double()
    return float(((actual.double() - x @ weight.t()).abs() / (x.abs() @ weight.abs().t())).max())


@pytest.mark.parametrize("matrix", MATRIX)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "k"), [(1, 32), (33, 64), (95, 96), (160, 576), (49, 1536)])
def test_products_equal_those_in_float64(n: int, k: int, form: str, matrix: Matrix) -> None:
    library, rows = CpuLibrary(matrix=matrix), stored(n, k, form)
    multiply, weight = product(library, rows, k, form), meant(rows, form)
    for count in (1, 2, 3, 5, 7, FEW):
        x = inputs(count, k)
        assert error(multiply(x), x, weight) < 1e-4
    for count in (FEW + 1, 32, 45, 70):
        x = inputs(count, k)
        # As exact as a product in bfloat16 is: weights are rounded to 8 bits.
        assert error(multiply(x), x, weight.bfloat16()) < 1e-5
        assert error(multiply(x), x, weight) < 4e-3


@pytest.mark.parametrize("matrix", MATRIX)
@pytest.mark.parametrize("form", FORMS)
def test_many_rows_are_the_dense_product_bit_by_bit(form: str, matrix: Matrix) -> None:
    library, rows = CpuLibrary(matrix=matrix), stored(75, 160, form)
    x = inputs(600, 160)
    dense = dense_product(library, meant(rows, form).bfloat16())
    assert torch.equal(product(library, rows, 160, form)(x), dense(x))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_depends_on_no_other(form: str) -> None:
    library, rows = CpuLibrary(), stored(64, 96, form)
    multiply, x = product(library, rows, 96, form), inputs(FEW, 96)
    alone = torch.cat([multiply(x[i : i + 1]) for i in range(FEW)])
    for count in range(2, FEW + 1):
        assert torch.equal(multiply(x[:count]), alone[:count])


@settings(max_examples=60)
@given(st.data())
def test_any_bytes_mean_what_the_reference_says(data: st.DataObject) -> None:
    """Each value of a weight by itself, read by a row that is 1 in one place: exactly as many rows, rounded as few."""
    form = data.draw(st.sampled_from(FORMS))
    n, groups = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 3))
    size, k = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[form], groups * 32
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    blocks = rng.integers(0, 256, (n, groups, size)).astype(np.uint8)
    factors = 2 if form == "Q4_1" else 1
    # Any fp16 but infinity, NaN and the smallest.
    scales = rng.uniform(-6, 6, (n, groups, factors)).astype(np.float16)
    blocks[:, :, : 2 * factors] = scales.view(np.uint8)
    rows = blocks.reshape(n, -1)
    multiply, weight = product(CpuLibrary(), rows, k, form), meant(rows, form)
    one = torch.eye(k).bfloat16()
    assert torch.equal(multiply(one), weight.t().bfloat16().float())
    few = multiply(one[:FEW])
    assert (few - weight.t()[:FEW]).abs().max() <= 1e-5 * weight.abs().max()


def test_packed_weights_take_the_bytes_of_the_file() -> None:
    for form in FORMS:
        assert packed_bytes((64, 96), GROUPED_FORMS[form]) == stored(64, 96, form).nbytes
