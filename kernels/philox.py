"""The counter-based generator of sampling, in numpy: Philox 4x32 with 10 rounds, bit for bit what the kernel draws.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). Keyed by a request's seed; the counter holds the
token's position in its sequence and its place in the vocabulary, so that a draw depends on nothing else.
"""

import numpy as np
import torch
from numpy.typing import NDArray

LANES = 1024
"""A draw gives four numbers: tokens lane, lane + LANES, lane + 2 * LANES and lane + 3 * LANES of a run of 4 * LANES."""

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def philox(seed: int, counter: tuple[NDArray[np.uint32], int, int, int]) -> NDArray[np.uint32]:
    """Four uint32 for each entry of the counter's first word, `[4, n]`; the seed has 64 bits."""
    n = counter[0].shape
    c0 = counter[0].astype(np.uint64)
    c1, c2, c3 = (np.full(n, word & 0xFFFFFFFF, np.uint64) for word in counter[1:])
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        high0, low0 = (_M0 * c0) >> np.uint64(32), (_M0 * c0) & _LOW
        high1, low1 = (_M1 * c2) >> np.uint64(32), (_M1 * c2) & _LOW
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3)).astype(np.uint32)


def gumbel(seed: int, position: int, vocabulary: int) -> torch.Tensor:
    """Gumbel noise of each token of the vocabulary for one draw, float32 `[vocabulary]`.

    From 23 bits of each number: (bits + 0.5) / 2**23 is exact in float32 and neither 0 nor 1.
    """
    runs = -(-vocabulary // (4 * LANES))
    words = philox(seed, (np.arange(runs * LANES, dtype=np.uint32), position & 0xFFFFFFFF, position >> 32, 0))
    ordered = words.reshape(4, runs, LANES).transpose(1, 0, 2).reshape(-1)[:vocabulary]
    uniform = ((ordered >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
    return torch.from_numpy(-np.log(-np.log(uniform)))
