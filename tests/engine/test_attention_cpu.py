"""The compiled backend in every form that this CPU can run, against attention written out in float64."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.attention_check import PLAIN, Kind, MakeBackend, check
from tests.engine.batches import Chunk, make_batch
from tests.helpers.cpu_forms import HERE, matrix_forms, simd_forms

from deeproot.engine.attention_cpu import CpuAttention
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.kernels.cpu.native import CpuLibrary, Matrix, Simd

SIMD, MATRIX = simd_forms(), matrix_forms("none")
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
MIXED = [(40, 1), (0, 37), (30, 7), (0, 1), (16, 1), (299, 1), (520, 1), (250, 30)]
"""Decodes with and without split keys, and chunks of less and more rows than AMX takes at a time."""


def backend(simd: Simd | None = None, matrix: Matrix | None = None) -> MakeBackend:
    library = CpuLibrary(simd=simd, matrix=matrix)

    def make(pool: KVPool, kind: Kind, num_qo_heads: int) -> CpuAttention:
        return CpuAttention(pool, num_qo_heads, library, kind.scale, kind.cap, [None, kind.window])

    return make


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("simd", "matrix"), list(product(SIMD, MATRIX)))
def test_every_form(simd: Simd, matrix: Matrix, dtype: torch.dtype) -> None:
    make, tolerance = backend(simd, matrix), TOLERANCES[dtype]
    check(MIXED, 3, 1, 16, 5, dtype, PLAIN, tolerance, make, head_dim=64)
    check(MIXED, 3, 1, 16, 6, dtype, Kind(0.4, 1.5, 33), tolerance, make, head_dim=40)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 30) | st.just(1)), min_size=1, max_size=4),
    group=st.integers(1, 9),
    num_kv_heads=st.integers(1, 2),
    page_size=st.sampled_from([1, 4, 16, 64, 128]),
    # In fewer channels a sum of values may come to nearly nothing, and of that a relative error says nothing.
    head_dim=st.integers(4, 70),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(list(TOLERANCES)),
    form=st.tuples(st.sampled_from(SIMD), st.sampled_from(MATRIX)),
    kind=st.builds(
        Kind,
        scale=st.none() | st.floats(0.1, 2.0),
        cap=st.none() | st.floats(0.3, 5.0),
        window=st.none() | st.integers(1, 320),
    ),
)
def test_equals_brute_force(
    lengths: list[tuple[int, int]],
    group: int,
    num_kv_heads: int,
    page_size: int,
    head_dim: int,
    seed: int,
    dtype: torch.dtype,
    form: tuple[Simd, Matrix],
    kind: Kind,
) -> None:
    make = backend(*form)
    check(lengths, group, num_kv_heads, page_size, seed, dtype, kind, TOLERANCES[dtype], make, head_dim)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 600), min_size=1, max_size=4),
    group=st.integers(1, 17),
    page_size=st.sampled_from([16, 48, 64]),
    head_dim=st.sampled_from([32, 64, 96, 128, 256]),
    seed=st.integers(0, 2**31),
    matrix=st.sampled_from(MATRIX),
    kind=st.builds(
        Kind, scale=st.none(), cap=st.none() | st.floats(0.3, 5.0), window=st.none() | st.integers(1, 320)
    ),
)
def test_single_tokens_whose_keys_are_whole_tiles(
    lengths: list[int], group: int, page_size: int, head_dim: int, seed: int, matrix: Matrix, kind: Kind
) -> None:
    ones = [(length, 1) for length in lengths]
    check(ones, group, 1, page_size, seed, torch.bfloat16, kind, 1e-2, backend(matrix=matrix), head_dim)


@pytest.mark.parametrize("matrix", MATRIX)
def test_what_is_left_in_a_page_behind_the_last_token_is_not_seen(matrix: Matrix) -> None:
    page_size, length, head_dim = 16, 5, 32
    pool = KVPool(KVLayout(1, 1, head_dim, page_size, torch.bfloat16), 1)
    for tensor in pool.kv(0):
        tensor.fill_(torch.nan)
        tensor[:, :, :length] = 1.0
    attention = CpuAttention(pool, 2, CpuLibrary(matrix=matrix))
    attention.plan(make_batch([Chunk([0] * length, length - 1, [0])], page_size))
    ones = torch.ones(1, 2, head_dim, dtype=torch.bfloat16)
    assert torch.equal(attention.run(0, ones, ones[:, :1], ones[:, :1]), ones)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [1, 2, 3])
@pytest.mark.parametrize(("simd", "matrix"), list(product(SIMD, MATRIX)))
def test_few_channels(simd: Simd, matrix: Matrix, head_dim: int, dtype: torch.dtype) -> None:
    lengths = [(40, 1), (0, 7), (16, 5)]
    check(lengths, 2, 1, 16, 3, dtype, PLAIN, TOLERANCES[dtype], backend(simd, matrix), head_dim)


@pytest.mark.parametrize("window", [None, 1500])
@pytest.mark.parametrize(("simd", "matrix"), list(product(SIMD, MATRIX)))
def test_few_tokens_after_many(simd: Simd, matrix: Matrix, window: int | None) -> None:
    """Their keys are split among tasks; beside them are tokens whose keys are not."""
    lengths, kind = [(2100, 9), (0, 3), (600, 1)], Kind(None, None, window)
    check(lengths, 3, 1, 64, 8, torch.bfloat16, kind, 1e-2, backend(simd, matrix), head_dim=24)


@pytest.mark.parametrize("matrix", MATRIX)
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_around_the_edges_of_pages_and_steps(matrix: Matrix, edge: int) -> None:
    lengths = [(127 + edge, 1), (255 + edge, 1), (0, 64 + edge), (64, 64 + edge), (100, 28 + edge)]
    check(lengths, 2, 1, 64, 7, torch.bfloat16, PLAIN, 1e-2, backend(matrix=matrix), head_dim=32)


@pytest.mark.parametrize(
    ("matrix", "num_new"), [("none", 1), ("none", 9), *(("amx", n) for n in (1, 9) if HERE.amx)]
)
def test_a_window_reads_only_its_pages(matrix: Matrix, num_new: int) -> None:
    """Pages before the window may be overwritten by anything, NaN included."""
    page_size, length, window, head_dim = 16, 200, 20, 32
    pool = KVPool(KVLayout(1, 1, head_dim, page_size, torch.bfloat16), 13)
    generator = torch.Generator().manual_seed(0)
    for tensor in pool.kv(0):
        tensor.normal_(generator=generator)
        tensor[: (length - num_new + 1 - window) // page_size] = torch.nan
    attention = CpuAttention(pool, 2, CpuLibrary(matrix=matrix), windows=[window])
    attention.plan(make_batch([Chunk([0] * length, length - num_new, list(range(13)))], page_size))
    q = torch.randn(num_new, 2, head_dim, generator=generator).bfloat16()
    k = torch.randn(num_new, 1, head_dim, generator=generator).bfloat16()
    assert attention.run(0, q, k, k).isfinite().all()


def test_a_decode_depends_on_nothing_beside_it() -> None:
    """Bit by bit the same alone and in a batch, whatever it is split into."""
    page_size, head_dim, lengths = 16, 64, [700, 3, 256, 257, 90]
    pool = KVPool(KVLayout(1, 1, head_dim, page_size, torch.bfloat16), 100)
    generator = torch.Generator().manual_seed(0)
    for tensor in pool.kv(0):
        tensor.normal_(generator=generator)
    pages = torch.arange(100).split([-(-n // page_size) for n in lengths] + [100 - 84])[:-1]
    chunks = [Chunk([0] * n, n - 1, own.tolist()) for n, own in zip(lengths, pages, strict=True)]
    q = torch.randn(5, 3, head_dim, generator=generator).bfloat16()
    k = torch.randn(5, 1, head_dim, generator=generator).bfloat16()
    attention = CpuAttention(pool, 3, CpuLibrary())
    attention.plan(make_batch(chunks, page_size))
    together = attention.run(0, q, k, k)
    for i, chunk in enumerate(chunks):
        attention.plan(make_batch([chunk], page_size))
        one = slice(i, i + 1)
        assert torch.equal(attention.run(0, q[one], k[one], k[one]), together[one])


def test_large_scores_do_not_overflow() -> None:
    pool = KVPool(KVLayout(1, 1, 32, 16, torch.float32), 3)
    attention = CpuAttention(pool, 1, CpuLibrary())
    attention.plan(make_batch([Chunk([0] * 40, 0, [0, 1, 2])], 16))
    x = torch.randn(40, 1, 32, generator=torch.Generator().manual_seed(0)) * 1e3
    out = attention.run(0, x, x, x)
    # Each token's score with itself is by far its greatest.
    assert torch.allclose(out, x)


def test_run_before_plan_is_refused() -> None:
    pool = KVPool(KVLayout(1, 1, 8, 16, torch.float32), 1)
    q = torch.zeros(1, 1, 8)
    with pytest.raises(RuntimeError, match="before plan"):
        CpuAttention(pool, 1, CpuLibrary()).run(0, q, q, q)
