"""The Triton backend in the interpreter against attention written out in float64, over random and chosen batches."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engine.attention_check import PLAIN, Kind, MakeBackend, check
from tests.engine.batches import Chunk, make_batch

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_triton import TritonAttention, TritonTuning
from deeproot.engine.batch import ForwardBatch
from deeproot.engine.kv_pool import KVLayout, KVPool
from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.kernels.launch import Launch

LIMITS = BatchLimits(max_seqs=8, max_tokens=128, max_model_len=512)
SMALL = TritonTuning(
    min_piece=32,
    prefill=PrefillConfig("gather", 32, 32, 4, 2),
    decode=DecodeConfig("gather", 32, 8, 4, 2),
)
"""Tiles that keep the interpreter fast, pieces short enough for short sequences to have several."""
ALWAYS, NEVER = replace(SMALL, cascade="always"), replace(SMALL, cascade="never")
MIXED = [(40, 1), (23, 1), (0, 50), (30, 20), (0, 1), (15, 1), (16, 1), (90, 3)]


def triton(tuning: TritonTuning | None = SMALL) -> MakeBackend:
    def make(pool: KVPool, kind: Kind, num_qo_heads: int) -> AttentionBackend:
        dtype, windows = pool.layout.dtype, [None, kind.window]
        return TritonAttention(pool, num_qo_heads, LIMITS, dtype, kind.scale, kind.cap, windows, tuning)

    return make


def check_triton(lengths: list[tuple[int, int]], tuning: TritonTuning | None = SMALL, **settings: Any) -> Any:
    usual: dict[str, Any] = {
        "group": 2,
        "num_kv_heads": 2,
        "page_size": 16,
        "seed": 1,
        "head_dim": 64,
        "unused": 1e4,
    }
    return check(lengths, make_backend=triton(tuning), **{**usual, **settings})


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20) | st.just(1)), min_size=1, max_size=5),
    group=st.integers(1, 4),
    num_kv_heads=st.integers(1, 2),
    page_size=st.sampled_from([16, 32]),
    seed=st.integers(0, 99),
    kind=st.builds(
        Kind,
        scale=st.none() | st.floats(0.1, 2.0),
        cap=st.none() | st.floats(0.3, 5.0),
        window=st.none() | st.integers(1, 70),
    ),
)
def test_equals_brute_force(lengths: list[tuple[int, int]], **shape: Any) -> None:
    check_triton(lengths, **shape)


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("page_size", [16, 64])
def test_what_ships_at_each_head_dim(head_dim: int, page_size: int) -> None:
    """The configurations of the table, by pointers and by descriptors."""
    check_triton([(40, 1), (70, 9)], None, head_dim=head_dim, page_size=page_size, num_kv_heads=1)


@pytest.mark.parametrize("kind", [PLAIN, Kind(cap=1.0, window=20), Kind(window=17), Kind(scale=0.7)])
def test_mixed_batches(kind: Kind) -> None:
    check_triton(MIXED, kind=kind, group=3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    check_triton(MIXED[:4], dtype=dtype, tolerance=1e-2)


def test_an_extend_of_few_rows_is_cut_into_pieces() -> None:
    attention = check_triton([(300, 3)], num_kv_heads=1)
    assert attention._step.extends.levels == 4, "one piece for each of four multiprocessors"


SHARED = [(0, 1, 4), (0, 2, 4), (3, 4, 2)]
"""Pages of 16: three sequences share 64 tokens, two others 32."""
DECODES = [(70, 1), (100, 1), (64, 1), (40, 1), (33, 1), (50, 1)]
EXTENDS = [(70, 5), (100, 2), (64, 20), (40, 3), (33, 4), (0, 7)]


@pytest.mark.parametrize("lengths", [DECODES, EXTENDS, [*DECODES[:3], *EXTENDS[3:5]]])
@pytest.mark.parametrize("kind", [PLAIN, Kind(cap=1.0, window=20)])
def test_shared_pages_are_read_once_and_give_the_same(lengths: list[tuple[int, int]], kind: Kind) -> None:
    attention = check_triton(lengths, ALWAYS, kind=kind, shared=SHARED)
    step = attention._step
    assert step.prefix_levels or step.extends.parts is not None


def test_cascade_can_be_switched_off() -> None:
    attention = check_triton(DECODES[:2], NEVER, shared=SHARED[:1])
    assert not attention._step.prefix_levels


def test_sharers_that_do_not_stand_side_by_side() -> None:
    lengths = [(70, 1), (40, 4), (100, 1), (64, 1), (45, 6), (33, 1)]
    attention = check_triton(lengths, ALWAYS, shared=[(0, 3, 4), (2, 5, 2), (1, 4, 2)])
    order = attention._step.order[0].tolist()
    assert sorted(order) == list(range(14))
    assert order[:4] in ([0, 6, 5, 13], [5, 13, 0, 6]), "decodes first, those that share side by side"


def test_without_a_reason_to_share_nothing_is_shared() -> None:
    """By the cost model, 64 tokens are not worth two launches."""
    attention = check_triton(DECODES, replace(SMALL, cascade="auto"), shared=SHARED)
    assert attention._step.prefix_levels == 0


def make_attention(tuning: TritonTuning = SMALL) -> tuple[KVPool, TritonAttention]:
    pool = KVPool(KVLayout(1, 1, 64, 16, torch.float32), 8)
    return pool, TritonAttention(pool, 2, LIMITS, torch.float32, tuning=tuning)


def decode_batch(seq_lens: list[int], pages: list[list[int]]) -> ForwardBatch:
    chunks = [Chunk([0] * n, n - 1, own) for n, own in zip(seq_lens, pages, strict=True)]
    return make_batch(chunks, 16)


def test_run_before_plan_is_refused() -> None:
    q = torch.zeros(1, 2, 64)
    with pytest.raises(RuntimeError, match="before plan"):
        make_attention()[1].run(0, q, q[:, :1], q[:, :1])


def test_a_batch_over_the_limits_is_refused() -> None:
    _, attention = make_attention()
    with pytest.raises(ValueError, match=r"9 tokens of 9 sequences is over the limits .* 8 sequences"):
        attention.plan(decode_batch([1] * 9, [[0]] * 9))


PAIRS = [[0, 1, 2], [0, 1, 3], [4, 5, 6], [4, 5, 7]]
STEPS = {
    "apart": ([40, 3, 17, 33], [[0, 1, 2], [3], [4, 5], [6, 7, 8]]),
    "apart, later": ([1, 48, 2, 20], [[8], [1, 2, 3], [0], [4, 5]]),
    "two pairs": ([40, 41, 40, 35], PAIRS),
    "two pairs, mixed": ([40, 41, 40, 35], [PAIRS[i] for i in (0, 2, 1, 3)]),
    "one pair": ([48, 33, 9, 20], [[2, 3, 4], [2, 3, 5], [6], [7, 8]]),
}


def record(attention: TritonAttention, step: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """The key of a plan, and of each launch of `run` after it what a captured graph holds fast."""
    key = attention.plan(decode_batch(*STEPS[step]))
    launches: list[Any] = []

    def note(launch: Launch) -> None:
        plan_owned = {"table_ptr", "items_ptr", "num_items_ptr", "slots_ptr", "positions_ptr"}
        frozen = {
            name: (value.data_ptr() if name in plan_owned else value.shape)
            if isinstance(value, torch.Tensor)
            else value
            for name, value in launch.args.items()
        }
        launches.append((launch.kernel, launch.grid, frozen))

    with monkeypatch.context() as patch:
        patch.setattr(Launch, "run", note)
        q = torch.zeros(4, 2, 64)
        attention.run(0, q, q[:, :1], q[:, :1])
    return key, launches


def test_launches_after_plans_of_one_key_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, grids, numbers and addresses of lists: a graph captured after one plan serves the other."""
    _, attention = make_attention(ALWAYS)
    recorded = {step: record(attention, step, monkeypatch) for step in STEPS}
    for first, second in itertools.combinations(STEPS, 2):
        (key, launches), (other_key, other_launches) = recorded[first], recorded[second]
        assert (key == other_key) == ((first[:5] == "apart") == (second[:5] == "apart"))
        assert (launches == other_launches) == (key == other_key)
    assert attention.plan(make_batch([Chunk([0] * 9, 2, [0])], 16)) is None


def test_what_run_reads_of_a_plan_is_in_the_buffers() -> None:
    """As a graph does it: all that the host knew at capture, over the lists of a later plan of the same key."""
    generator = torch.Generator().manual_seed(3)
    pool, attention = make_attention(ALWAYS)
    for tensor in pool.kv(0):
        tensor.normal_(generator=generator)
    q, k = torch.randn(4, 2, 64, generator=generator), torch.randn(4, 1, 64, generator=generator)
    for first, second in (("two pairs", "one pair"), ("apart", "apart, later")):
        key = attention.plan(decode_batch(*STEPS[first]))
        captured = attention._step
        stale = attention.run(0, q, k, k)
        assert attention.plan(decode_batch(*STEPS[second])) == key
        wanted = attention.run(0, q, k, k)
        attention._step = captured
        assert torch.equal(attention.run(0, q, k, k), wanted)
        assert not torch.allclose(stale, wanted)
