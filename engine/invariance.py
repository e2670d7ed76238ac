"""Whether a runner's logits are bit for bit the same wherever a token stands in a batch and however its prompt was cut.

What the libraries do with a place in a matrix is written nowhere, so it is tried on the model itself when it is loaded.
Their control flow depends on shapes and not on values, so what holds for the tokens that are tried holds for all.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from deeproot.engine.batch import Int32Array, several_sequences
from deeproot.engine.runner import Runner

_MORE = 5
"""Tokens beyond two pieces that are tried."""
_LEAST = 165
"""Tokens that are tried at least: more than a tile of keys of any backend."""


class NotInvariant(RuntimeError):
    """No number of rows that was tried gives the same logits everywhere."""


def most_rows(make_runner: Callable[[int], Runner], candidates: Sequence[int]) -> tuple[int, Runner]:
    """The first number of rows with which logits depend on nothing but the row, and its runner. Raises NotInvariant.

    make_runner: a runner that computes in pieces of so many rows. Pages of its pool are used and given back.
    """
    for rows in candidates:
        runner = make_runner(rows)
        if is_invariant(runner, rows):
            return rows, runner
    tried = ", ".join(map(str, candidates))
    raise NotInvariant(f"logits depend on a token's place in pieces of {tried} rows")


def is_invariant(runner: Runner, rows: int) -> bool:
    """Try it: one sequence whole, behind another, cut, and its last token at every place of a piece.

    Takes the time of computing about `3 * max(165, 2 * rows)` tokens. Raises OutOfPages for a pool of one page.
    """
    pool, config = runner.pool, runner.model.config
    room = (pool.num_free - 1) * pool.page_size
    size = min(config.max_position_embeddings, max(_LEAST, 2 * rows + _MORE), max(room, 1))
    ids = np.random.default_rng(0).integers(0, config.vocab_size, size).astype(np.int32)
    pages = pool.alloc(-(-size // pool.page_size) + 1)
    own, other = pages[:-1], pages[-1:]
    behind, cut = min(_MORE, pool.page_size, size), min(3, size - 1)

    def logits(*sequences: tuple[Int32Array, int, Int32Array]) -> torch.Tensor:
        return runner.logits(several_sequences(sequences, pool.page_size))

    try:
        whole = logits((ids, 0, own))
        shifted = logits((ids[:behind], 0, other), (ids, 0, own))[behind:]
        parts = torch.cat([logits((ids[:cut], 0, own)), logits((ids, cut, own))])
        # All write the same K and V to the same slot.
        everywhere = logits(*[(ids, size - 1, own)] * rows)
    finally:
        pool.free(pages)
    return (
        torch.equal(whole, shifted)
        and torch.equal(whole, parts)
        and torch.equal(everywhere, whole[-1:].expand_as(everywhere))
    )
