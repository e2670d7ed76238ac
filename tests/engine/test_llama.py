"""Logits against transformers, and against ourselves with the same tokens computed in other steps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.batches import Chunk, greedy, make_batch
from tests.engine.hf import VOCAB, hf_logits, make_runner, relative_error, tiny_llama
from tests.engine.sequences import random_ids, run_in_steps, scattered_pages

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "group 3": {},
    "no group, tied": {"num_key_value_heads": 6, "tie_word_embeddings": True},
    "one kv head": {"num_key_value_heads": 1},
    "group 4, wide heads": {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1000.0}},
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("page_size", [16, 32, 64, 128])
def test_logits_equal_transformers(tmp_path: Path, name: str, page_size: int) -> None:
    model = tiny_llama(tmp_path, **CONFIGS[name])
    runner = make_runner(tmp_path, page_size)
    sequences = random_ids(1, 5, 64, 129, 300)
    pages = scattered_pages(sequences, page_size)
    chunks = [Chunk(ids, 0, own, all_logits=True) for ids, own in zip(sequences, pages, strict=True)]
    logits = runner.logits(make_batch(chunks, page_size))
    for ids, part in zip(sequences, logits.split([len(ids) for ids in sequences]), strict=True):
        assert relative_error(part, hf_logits(model, ids)) < 1e-4


@pytest.mark.parametrize("page_size", [16, 128])
@pytest.mark.parametrize(
    "steps", [[150], [64, 64, 22], [1, 15, 16, 17, 101], [149, 1], [148, *[1] * 2], [1] * 150]
)
def test_chunks_equal_the_whole(tmp_path: Path, page_size: int, steps: list[int]) -> None:
    model = tiny_llama(tmp_path)
    runner = make_runner(tmp_path, page_size)
    [ids] = random_ids(150)
    [pages] = scattered_pages([ids], page_size)
    assert relative_error(run_in_steps(runner, ids, pages, steps), hf_logits(model, ids)) < 1e-4


def test_cached_prefix_equals_uncached(tmp_path: Path) -> None:
    """Two sequences read the same prefix pages; neither computed the other's tail."""
    tiny_llama(tmp_path)
    runner = make_runner(tmp_path, page_size=32)
    prefix, *tails = random_ids(96, 20, 70)
    run_in_steps(runner, prefix, [4, 1, 7], [96])
    for tail, own in zip(tails, ([2, 3], [9, 5, 6]), strict=True):
        cached = Chunk(prefix + tail, len(prefix), [4, 1, 7, *own], all_logits=True)
        logits = runner.logits(make_batch([cached], 32))
        alone = run_in_steps(runner, prefix + tail, list(range(10, 17)), [len(prefix) + len(tail)])
        assert relative_error(logits, alone[len(prefix) :]) < 1e-5


def test_mixed_batch_of_eight_equals_alone(tmp_path: Path) -> None:
    """Prefills, chunks over cached tokens, and decodes of several lengths in one step."""
    tiny_llama(tmp_path)
    runner = make_runner(tmp_path, page_size=16)
    new_tokens = [40, 1, 1, 17, 1, 64, 1, 1]
    sequences = random_ids(40, 1, 200, 80, 17, 65, 33, 34)
    pages = scattered_pages(sequences, 16)
    chunks, expected = [], []
    for ids, own, n in zip(sequences, pages, new_tokens, strict=True):
        steps = [len(ids) - n, n] if len(ids) > n else [n]
        expected.append(run_in_steps(runner, ids, own, steps)[-n:])
        chunks.append(Chunk(ids, len(ids) - n, own, all_logits=True))
    logits = runner.logits(make_batch(chunks, 16))
    for part, alone in zip(logits.split(new_tokens), expected, strict=True):
        assert relative_error(part, alone) < 1e-5


def test_only_the_asked_rows_have_logits(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    runner = make_runner(tmp_path)
    [ids] = random_ids(20)
    every = run_in_steps(runner, ids, [0, 1], [20])
    last = runner.logits(make_batch([Chunk(ids, 0, [2, 3])], 16))
    assert last.shape == (1, VOCAB)
    assert relative_error(last[0], every[-1]) < 1e-5


def test_forward_samples_the_greatest_logit(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    runner = make_runner(tmp_path)
    first, second = random_ids(20, 7)
    batch = make_batch([Chunk(first, 0, [0, 1]), Chunk(second, 0, [2])], 16)
    tokens = runner.forward(batch).token_ids
    assert tokens.dtype == np.int32
    assert tokens.tolist() == runner.logits(batch).argmax(-1).tolist()


def test_a_step_without_logits_fills_the_cache(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    runner = make_runner(tmp_path)
    [ids] = random_ids(40)
    batch = make_batch([Chunk(ids[:30], 0, [3, 4, 5])], 16)
    silent = replace(batch, logits_indices=np.zeros(0, np.int64), sampling=greedy(0))
    assert runner.forward(silent).token_ids.shape == (0,)
    tail = runner.logits(make_batch([Chunk(ids, 30, [3, 4, 5], all_logits=True)], 16))
    assert relative_error(tail, run_in_steps(runner, ids, [6, 7, 8], [40])[30:]) < 1e-5
