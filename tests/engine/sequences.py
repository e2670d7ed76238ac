"""Random sequences, their pages, and a runner's logits of them in steps."""

import numpy as np
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import VOCAB

from deeproot.engine.runner import Runner


def random_ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, n).tolist() for n in lengths]


def scattered_pages(sequences: list[list[int]], page_size: int, spare: int = 0) -> list[list[int]]:
    """Pages for each sequence and `spare` tokens more, in no order."""
    counts = [-(-(len(ids) + spare) // page_size) for ids in sequences]
    numbers = np.random.default_rng(1).permutation(sum(counts))
    return [part.tolist() for part in np.split(numbers, np.cumsum(counts)[:-1])]


def run_in_steps(runner: Runner, ids: list[int], pages: list[int], steps: list[int]) -> torch.Tensor:
    """Logits of every position, computed alone in chunks of the given lengths."""
    done, parts = 0, []
    for n in steps:
        chunk = Chunk(ids[: done + n], done, pages, all_logits=True)
        parts.append(runner.logits(make_batch([chunk], runner.pool.page_size)))
        done += n
    assert done == len(ids)
    return torch.cat(parts)


def run_greedy(runner: Runner, prompts: list[list[int]], num_tokens: int) -> list[list[int]]:
    """What follows each prompt, all in one batch, one token a step after the first."""
    page_size = runner.pool.page_size
    pages = scattered_pages(prompts, page_size, spare=num_tokens)
    sequences, cached = [list(ids) for ids in prompts], [0] * len(prompts)
    for _ in range(num_tokens):
        chunks = [Chunk(ids, n, own) for ids, n, own in zip(sequences, cached, pages, strict=True)]
        cached = [len(ids) for ids in sequences]
        for ids, token in zip(
            sequences, runner.forward(make_batch(chunks, page_size)).token_ids, strict=True
        ):
            ids.append(int(token))
    return [ids[len(prompt) :] for ids, prompt in zip(sequences, prompts, strict=True)]
