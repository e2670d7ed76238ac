"""Choosing tokens from logits, so that a row's token depends on nothing but the row and its own settings.

Edits and masks of `logit_edits` come first. The chain of filters is Hugging Face's: temperature, top-k, top-p (of what
top-k left), min-p. One uniform number a row, made from seed and position, is looked up in the cumulative distribution: by
rank where a filter needs ranks, else by token id. Ties are broken by token id, so top-k leaves exactly k tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from deeproot.engine.batch import Int64Array, SamplingBatch
from deeproot.engine.logit_edits import edited
from deeproot.engine.transfer import to_device

_NUM_CANDIDATES = 1024
"""Tokens that are ranked at first; rows for which they turn out too few rank the whole vocabulary."""
GREEDY_BELOW = 1e-5
"""Temperatures under this are taken as 0."""


@dataclass(frozen=True, slots=True)
class _Settings:
    """Of `n` rows, each `[n, 1]`."""

    top_k: torch.Tensor
    """Vocabulary size where off."""
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor

    def rows(self, index: torch.Tensor) -> "_Settings":
        return _Settings(self.top_k[index], self.top_p[index], self.min_p[index], self.uniform[index])


def uniforms(seeds: NDArray[np.uint64], positions: Int64Array) -> NDArray[np.float64]:
    """One number in [0, 1) for each pair of seed and position, `[n]`.

    The splitmix64 stream (Steele, Lea, Flood 2014) whose start is the mixed seed, at index `position`: nearby
    seeds would otherwise give the same stream, shifted.
    """
    golden = np.uint64(0x9E3779B97F4A7C15)
    counter = positions.astype(np.uint64) + np.uint64(1)
    bits = _mix(_mix(seeds.astype(np.uint64) + golden) + counter * golden)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every input bit changes every output bit with probability 1/2."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def sample(logits: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
    """Token ids `[N]` int64. logits: `[N, vocab_size]` float32, not changed."""
    logits = edited(logits, settings)
    greedy = settings.temperature < GREEDY_BELOW
    tokens = _greatest(logits)
    if greedy.all():
        return tokens
    ranked = ~greedy & ((settings.top_k > 0) | (settings.top_p < 1))
    for group, choose in ((~greedy & ~ranked, _by_id), (ranked, _by_rank)):
        if group.any():
            rows = to_device(np.flatnonzero(group), logits.device)
            scaled = _scale(logits[rows], settings.temperature[group])
            tokens[rows] = choose(scaled, _settings(settings, group, logits))
    return tokens


def _greatest(logits: torch.Tensor) -> torch.Tensor:
    """The first of each row's greatest, `[N]`, or its first NaN."""
    if logits.device.type == "cpu":
        # numpy compares by vectors: 8 rows of 49,152 take torch 0.6 ms, and it 0.05.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def _scale(logits: torch.Tensor, temperature: NDArray[np.float32]) -> torch.Tensor:
    """Divide by the temperature, the greatest moved to 0 first so that nothing overflows. Returns float64."""
    logits = logits.double()
    divisor = to_device(temperature, logits.device).double().unsqueeze(1)
    return (logits - logits.amax(-1, keepdim=True)) / divisor


def _settings(settings: SamplingBatch, rows: NDArray[np.bool_], logits: torch.Tensor) -> _Settings:
    def column(values: np.ndarray) -> torch.Tensor:
        return to_device(values[rows], logits.device).unsqueeze(1)

    vocab_size = logits.shape[1]
    top_k = np.where(settings.top_k > 0, np.minimum(settings.top_k, vocab_size), vocab_size)
    uniform = uniforms(settings.seeds, settings.positions)
    return _Settings(column(top_k), column(settings.top_p), column(settings.min_p), column(uniform))


def _by_id(scaled: torch.Tensor, settings: _Settings) -> torch.Tensor:
    """Rows without top-k and top-p. The greatest of `scaled` is 0, so its weight is 1."""
    weights = scaled.exp()
    weights = torch.where(weights >= settings.min_p, weights, 0)
    return _invert(weights, settings.uniform)


def _by_rank(scaled: torch.Tensor, settings: _Settings) -> torch.Tensor:
    """Rank the likeliest tokens only, and all where that does not decide; both give the same token."""
    vocab_size = scaled.shape[1]
    n = min(_NUM_CANDIDATES, vocab_size)
    values, ids = scaled.topk(n)
    # topk leaves the order of ties open: sort by id, then stably by value.
    ids, order = ids.sort(-1)
    values, order = values.gather(-1, order).sort(stable=True, dim=-1, descending=True)
    ids = ids.gather(-1, order)
    total = scaled.exp().sum(-1, keepdim=True)
    tokens, decided = _filter(values, ids, total, settings)
    known_total = (settings.top_k <= n) | (settings.top_k == vocab_size)
    rest = torch.nonzero(~(decided & known_total[:, 0]))[:, 0]
    if n < vocab_size and len(rest):
        values, ids = scaled[rest].sort(stable=True, dim=-1, descending=True)
        tokens[rest], _ = _filter(values, ids, total[rest], settings.rows(rest))
    return tokens


def _filter(
    values: torch.Tensor, ids: torch.Tensor, total: torch.Tensor, settings: _Settings
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens `[n]`, and whether each is certain though only the `m` first ranks are known.

    values, ids: `[n, m]` by rank. total: `[n, 1]` sum of all weights. What a filter keeps is always a run of first
    ranks. It is certain if it ends before the last known value, with which unknown ranks may tie.
    """
    weights = values.exp()
    ranks = torch.arange(values.shape[1], device=values.device)
    in_top_k = ranks < settings.top_k
    before = weights.cumsum(-1) - weights
    limited = settings.top_k <= values.shape[1]
    total = torch.where(limited, torch.where(in_top_k, weights, 0).sum(-1, keepdim=True), total)
    keep = in_top_k & (before < settings.top_p * total) & (weights >= settings.min_p)
    keep[:, 0] = True
    kept = keep.sum(-1, keepdim=True)
    decided = values.gather(-1, kept - 1) > values[:, -1:]
    choice = _invert(torch.where(keep, weights, 0), settings.uniform)
    return ids.gather(-1, choice.unsqueeze(1))[:, 0], decided[:, 0]


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The first index `[n]` at which the running sum of `weights` passes `uniform` of the whole."""
    running = weights.cumsum(-1)
    whole = running[:, -1:].contiguous()
    index = torch.searchsorted(running, uniform * whole, right=True)[:, 0]
    # Rounding may lift the product to the whole itself: then the last index that has weight. The clamp keeps
    # rows of NaN, for which no index is right, from naming a token that does not exist.
    last = torch.searchsorted(running, whole)[:, 0]
    return torch.minimum(index, last).clamp_(max=weights.shape[1] - 1)
