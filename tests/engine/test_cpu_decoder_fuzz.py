"""Random runs of the C++ decoder against transformers in float32: whatever a step is made of, each row is its sequence's.

A run computes up to 40 sequences in steps of random make-up: chunks of random lengths beside single tokens, in random order, some
sequences left out, prefixes on shared pages, pages in no order. transformers computes each sequence alone, whole and without
a cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.engine.batches import Chunk, make_batch
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import VOCAB, hf_logits, make_runner, relative_error, tiny_llama, tiny_model
from tests.engine.test_cpu_decoder import rounded
from tests.engine.test_families import settings_of
from tests.engine.test_quantization import FAMILIES, as_meant
from tests.helpers.cpu_forms import matrix_forms, needs_bf16
from transformers import PreTrainedModel

from deeproot.engine.cpu_decoder import CpuDecoder
from deeproot.engine.runner import Runner
from deeproot.kernels.cpu.native import CpuLibrary, Matrix

pytestmark = needs_bf16
LONGEST = 90
TOLERANCE, OF_A_ROW = 0.03, 0.15
"""Of all logits of a run and of each row, by their norms: activations and cache are in bfloat16."""
ODD = {"hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 5, "num_key_value_heads": 1}
ODD |= {"head_dim": 10, "attention_bias": True, "mlp_bias": True}
"""Sizes that fill no panel, and a group of five."""
DENSE = ["llama", "mistral: short window", "mistral: wide heads", "qwen3", "gemma2: all", "gemma3: two bases"]
QUANTISED = [("llama", "Q4_0"), ("llama", "Q4_1"), ("llama", "Q8_0"), ("gemma2", "Q4_1"), ("phi3", "Q4_0")]


@dataclass(frozen=True)
class Pair:
    """One model on both sides. `make`: a runner of so many pages of that size."""

    reference: PreTrainedModel
    make: Callable[[int, int], Runner]


def dense(folder: Path, name: str) -> Pair:
    family, changes = settings_of(name)
    reference = rounded(tiny_model(folder, family, **changes))
    return Pair(reference, partial(make_runner, folder, dtype="bfloat16", attention="cpu"))


def odd(folder: Path) -> Pair:
    return Pair(
        rounded(tiny_llama(folder, **ODD)), partial(make_runner, folder, dtype="bfloat16", attention="cpu")
    )


def quantised(folder: Path, family: str, kind: GGMLQuantizationType) -> Pair:
    model = tiny_model(None, family, **FAMILIES[family])
    path = write_gguf(folder / "m.gguf", family, model, kind)
    make = partial(make_runner, path, dtype="bfloat16", attention="cpu", quantization="gguf")
    return Pair(as_meant(model, kind), make)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
MODELS: dict[str, Callable[[Path], Pair]] = {
    **{name: partial(dense, name=name) for name in DENSE},
    "odd sizes": odd,
    **{
        f"{family} in {kind}": partial(quantised, family=family, kind=GGMLQuantizationType[kind])
        for family, kind in QUANTISED
    },
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return MODELS[request.param](tmp_path_factory.mktemp("model"))


@dataclass
class Sequence:
    """`ids` are to be computed, `done` of them are; its first `shared` lie on pages of `parent`, which computes them."""

    ids: list[int]
    pages: list[int]
    parent: "Sequence | None"
    shared: int
    done: int = 0


def made_sequences(rng: np.random.Generator, count: int, page_size: int) -> tuple[list[Sequence], int]:
    """And the number of pages; three more than are used."""
    made: list[Sequence] = []
    fresh: list[int] = []
    for _ in range(count):
        length = int(rng.integers(1, LONGEST))
        ids = rng.integers(0, VOCAB, length).tolist()
        parent = made[rng.integers(len(made))] if made and rng.random() < 0.4 else None
        most = 0 if parent is None else min(length - 1, len(parent.ids)) // page_size
        pages = int(rng.integers(0, most + 1))
        if parent is not None:
            ids[: pages * page_size] = parent.ids[: pages * page_size]
        fresh.append(-(-length // page_size) - pages)
        made.append(Sequence(ids, [pages], parent, pages * page_size))
    numbers = np.split(rng.permutation(sum(fresh) + 3), np.cumsum(fresh))
    for sequence, own in zip(made, numbers, strict=False):
        [pages] = sequence.pages
        before = [] if sequence.parent is None else sequence.parent.pages[:pages]
        sequence.pages = [*before, *own.tolist()]
    return made, sum(fresh) + 3


def made_steps(rng: np.random.Generator, sequences: list[Sequence], decoding: float) -> Iterator[list[Chunk]]:
    """Until all is computed. decoding: how many of a step's sequences compute a single token."""
    while any(sequence.done < len(sequence.ids) for sequence in sequences):
        # What lies on shared pages is there before the step.
        for one in sequences:
            if one.parent is not None and one.parent.done >= one.shared:
                one.done = max(one.done, one.shared)
        ready = [s for s in sequences if s.shared <= s.done < len(s.ids)]
        some = [s for s in ready if rng.random() < 0.85] or ready
        chunks = []
        for i in rng.permutation(len(some)):
            one = some[i]
            left = len(one.ids) - one.done
            new = 1 if rng.random() < decoding else int(rng.integers(1, left + 1))
            every = bool(rng.random() < 0.5)
            chunks.append(Chunk(one.ids[: one.done + new], one.done, one.pages, all_logits=every))
            one.done += new
        yield chunks


def check_pool(runner: Runner, sequences: list[Sequence]) -> None:
    """Every slot of a token holds numbers, and no other slot was written."""
    page_size = runner.pool.page_size
    used = torch.zeros(len(runner.pool.kv(0)[0]), page_size, dtype=torch.bool)
    for sequence in sequences:
        for position in range(len(sequence.ids)):
            used[sequence.pages[position // page_size], position % page_size] = True
    for layer in range(runner.pool.layout.num_layers):
        for tensor in runner.pool.kv(layer):
            slots = tensor.transpose(1, 2)
            assert slots[used].isfinite().all()
            assert slots[~used].isnan().all()


@pytest.mark.parametrize("matrix", matrix_forms("avx512_bf16"))
# A run that fails is named by its seed; to look for smaller ones takes minutes.
@settings(
    max_examples=4, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.differing_executors]
)
@given(
    count=st.integers(1, 40),
    page_size=st.sampled_from([1, 4, 16, 64]),
    decoding=st.sampled_from([0.0, 0.5, 0.9]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_runs(
    pair: Pair, matrix: Matrix, count: int, page_size: int, decoding: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sequences, num_pages = made_sequences(rng, count, page_size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deeproot.engine.attention_choice.CpuLibrary", lambda: CpuLibrary(matrix=matrix))
        runner = pair.make(page_size, num_pages)
    assert isinstance(runner.model, CpuDecoder)
    whole = [hf_logits(pair.reference, sequence.ids) for sequence in sequences]
    expected_of = {id(sequence.pages): rows for sequence, rows in zip(sequences, whole, strict=True)}
    compared = []
    for chunks in made_steps(rng, sequences, decoding):
        actual = runner.logits(make_batch(chunks, page_size))
        expected = torch.cat(
            [
                expected_of[id(c.pages)][c.num_cached if c.all_logits else -1 + len(c.ids) : len(c.ids)]
                for c in chunks
            ]
        )
        compared.append((actual, expected))
    actual, expected = (torch.cat(parts) for parts in zip(*compared, strict=True))
    assert relative_error(actual, expected) < TOLERANCE
    assert ((actual - expected).norm(dim=1) < OF_A_ROW * expected.norm(dim=1)).all()
    check_pool(runner, sequences)
