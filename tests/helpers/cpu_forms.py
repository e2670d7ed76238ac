"""Which forms of the compiled CPU code can be tested here."""

import pytest

from deeproot.kernels.cpu.build import abilities_here
from deeproot.kernels.cpu.native import Matrix, Simd

HERE = abilities_here()
needs_bf16 = pytest.mark.skipif(
    not HERE.bf16,
    reason="the compiled forward pass is for CPUs with AVX-512 bf16 instructions, and this one has none",
)


def simd_forms() -> list[Simd]:
    """Of attention."""
    forms: list[Simd] = ["plain"]
    if HERE.avx2:
        forms.append("avx2")
    if HERE.avx512:
        forms.append("avx512")
    return forms


def matrix_forms(first: Matrix) -> list[Matrix]:
    """The form `first`, and AMX where it is there."""
    return [first, "amx"] if HERE.amx else [first]
