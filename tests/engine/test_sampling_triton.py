"""Sampling by the kernel, in the interpreter: settings of a batch reach it as `sampling.sample` understands them."""

from dataclasses import replace

import numpy as np
import torch
from tests.engine.batches import settings

from deeproot.engine.batch import TokenMask
from deeproot.engine.sampling import sample
from deeproot.engine.sampling_choice import choose_sampler
from deeproot.engine.sampling_triton import sample_triton
from deeproot.kernels import reference

VOCAB = 96


def some_logits(rows: int) -> torch.Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(1))


def test_greedy_rows_beside_others() -> None:
    logits = some_logits(6)
    mixed = settings(6, temperature=1.0)
    mixed.temperature[::2] = [0.0, 1e-6, 0.0]
    tokens = sample_triton(logits, mixed)
    assert tokens[::2].tolist() == logits.argmax(-1)[::2].tolist()
    assert torch.equal(sample_triton(logits, settings(6)), logits.argmax(-1))


def test_each_setting_reaches_the_kernel() -> None:
    """As its twin draws, row by row; and never a token that the torch chain of filters would not draw."""
    rows = 12
    logits = some_logits(rows)
    batch = settings(rows, temperature=1.5, seed=2**63 + 5, position=7)
    batch.top_k[:4], batch.top_p[4:8], batch.min_p[8:] = 3, 0.4, 0.3
    tokens = sample_triton(logits, batch)
    wanted = reference.sample(
        logits,
        torch.from_numpy(batch.temperature),
        torch.from_numpy(batch.top_k),
        torch.from_numpy(batch.top_p),
        torch.from_numpy(batch.min_p),
        torch.from_numpy(batch.seeds.view(np.int64)),
        torch.from_numpy(batch.positions),
    )
    assert tokens.tolist() == wanted.tolist()
    allowed: list[set[int]] = [set() for _ in range(rows)]
    for seed in range(300):
        drawn = sample(logits, replace(batch, seeds=np.full(rows, seed, np.uint64)))
        for row, token in enumerate(drawn.tolist()):
            allowed[row].add(token)
    assert all(token in allowed[row] for row, token in enumerate(tokens.tolist()))


def test_a_rows_token_does_not_depend_on_the_batch() -> None:
    logits, batch = some_logits(5), settings(5, temperature=1.0, top_k=20, seed=3)
    together = sample_triton(logits, batch).tolist()
    alone = [
        sample_triton(logits[i : i + 1], settings(1, 1.0, 20, seed=3, position=i)).item() for i in range(5)
    ]
    assert together == alone


def test_masked_tokens_are_never_drawn() -> None:
    words = np.zeros((4, VOCAB // 32), dtype=np.int32)
    words[:, 1] = 0b1010  # tokens 33 and 35
    batch = settings(4, temperature=5.0)
    batch = replace(batch, mask=TokenMask(np.arange(4, dtype=np.int64), words))
    assert set(sample_triton(some_logits(4), batch).tolist()) <= {33, 35}


def test_no_rows() -> None:
    assert sample_triton(some_logits(0), settings(0, temperature=1.0)).shape == (0,)


def test_without_a_gpu_torch_samples() -> None:
    assert choose_sampler(torch.device("cpu")) is sample
