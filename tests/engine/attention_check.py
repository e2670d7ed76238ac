"""A backend against attention written out in float64, over a pool full of poison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tests.engine.batches import Chunk, make_batch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.kv_pool import KVLayout, KVPool

LAYER = 1
"""The one that is looked at; layer 0 attends otherwise, in the same plan."""
MakeBackend = Callable[[KVPool, "Kind", int], AttentionBackend]
"""Called with the number of query heads."""


@dataclass(frozen=True)
class Kind:
    """What attention is asked for, besides causality."""

    scale: float | None = None
    cap: float | None = None
    window: int | None = None


PLAIN = Kind()


def brute_force(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Causal attention of the last `len(q)` tokens of one sequence, one row of scores at a time, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group, head_dim = q.shape[1] // k.shape[1], q.shape[2]
    out = torch.zeros_like(q)
    for t in range(len(q)):
        end = len(k) - len(q) + t + 1
        start = 0 if kind.window is None else max(0, end - kind.window)
        for head in range(q.shape[1]):
            scores = k[start:end, head // group] @ q[t, head]
            scores = scores * (head_dim**-0.5 if kind.scale is None else kind.scale)
            if kind.cap is not None:
                scores = kind.cap * torch.tanh(scores / kind.cap)
            out[t, head] = torch.softmax(scores, 0) @ v[start:end, head // group]
    return out


def torch_backend(pool: KVPool, kind: Kind, num_qo_heads: int) -> TorchAttention:
    return TorchAttention(pool, kind.scale, kind.cap, [None, kind.window])


def check(
    lengths: list[tuple[int, int]],
    group: int,
    num_kv_heads: int,
    page_size: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    kind: Kind = PLAIN,
    tolerance: float = 1e-5,
    make_backend: MakeBackend = torch_backend,
    head_dim: int = 8,
    shared: Sequence[tuple[int, int, int]] = (),
    unused: float = torch.nan,
) -> AttentionBackend:
    """lengths: cached and new tokens of each sequence. shared: (i, j, n): sequence j has the first n pages of i.
    unused: what slots without a token hold in pages that have some; all other pages hold NaN.

    Returns the backend after its step.
    """
    generator = torch.Generator().manual_seed(seed)
    pages = scattered_pages([-(-(cached + new) // page_size) for cached, new in lengths], seed)
    pool = poisoned(KVLayout(LAYER + 1, num_kv_heads, head_dim, page_size, dtype), sum(map(len, pages)) + 3)
    totals = [cached + new for cached, new in lengths]
    keys = [torch.randn(n, num_kv_heads, head_dim, generator=generator).to(dtype) for n in totals]
    values = [torch.randn(n, num_kv_heads, head_dim, generator=generator).to(dtype) for n in totals]
    for i, j, n in shared:
        pages[j][:n] = pages[i][:n]
        keys[j][: n * page_size], values[j][: n * page_size] = (
            keys[i][: n * page_size],
            values[i][: n * page_size],
        )
    for own in pages:
        for tensor in pool.kv(LAYER):
            tensor[own] = unused
    for (cached, _), own, k, v in zip(lengths, pages, keys, values, strict=True):
        write(pool, own, k[:cached], v[:cached])

    chunks = [
        Chunk([0] * n, cached, own.tolist())
        for n, (cached, _), own in zip(totals, lengths, pages, strict=True)
    ]
    attention = make_backend(pool, kind, group * num_kv_heads)
    attention.plan(make_batch(chunks, page_size))
    new_tokens = [new for _, new in lengths]
    q = torch.randn(sum(new_tokens), group * num_kv_heads, head_dim, generator=generator).to(dtype)
    new_k = torch.cat([k[cached:] for k, (cached, _) in zip(keys, lengths, strict=True)])
    new_v = torch.cat([v[cached:] for v, (cached, _) in zip(values, lengths, strict=True)])
    out = attention.run(LAYER, q, new_k, new_v)

    assert out.shape == q.shape
    assert out.dtype == dtype
    for mine, queries, k, v in zip(out.split(new_tokens), q.split(new_tokens), keys, values, strict=True):
        expected = brute_force(queries, k, v, kind)
        assert (mine.double() - expected).norm() < tolerance * expected.norm()
    check_pool(pool, unused, pages, keys, values)
    return attention


def poisoned(layout: KVLayout, num_pages: int) -> KVPool:
    """A pool in which every slot of every layer holds NaN."""
    pool = KVPool(layout, num_pages)
    for layer in range(LAYER + 1):
        for tensor in pool.kv(layer):
            tensor.fill_(torch.nan)
    return pool


def scattered_pages(counts: Sequence[int], seed: int) -> list[np.ndarray]:
    """So many pages for each sequence, out of all of them and three more, in no order."""
    order = np.random.default_rng(seed).permutation(sum(counts) + 3)
    return np.split(order[: sum(counts)], np.cumsum(counts)[:-1])


def write(pool: KVPool, pages: np.ndarray, keys: torch.Tensor, values: torch.Tensor) -> None:
    """K and V of a sequence's first tokens, into their slots."""
    for tensor, rows in zip(pool.kv(LAYER), (keys, values), strict=True):
        for t, row in enumerate(rows):
            tensor[pages[t // pool.page_size], :, t % pool.page_size] = row


def check_pool(
    pool: KVPool,
    unused: float,
    pages: list[np.ndarray],
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
) -> None:
    """Every token's K and V lie in their slots, and no other slot was written, in no layer."""
    for tensor, parts in zip(pool.kv(LAYER), (keys, values), strict=True):
        rest = tensor.clone()
        for own, part in zip(pages, parts, strict=True):
            for t, row in enumerate(part):
                page, offset = own[t // pool.page_size], t % pool.page_size
                assert torch.equal(tensor[page, :, offset], row)
                rest[page, :, offset] = unused
        live = np.unique(np.concatenate(pages))
        assert torch.equal(rest[live].nan_to_num(-1.0), torch.full_like(rest[live], unused).nan_to_num(-1.0))
        rest[live] = torch.nan
        assert rest.isnan().all()
    assert all(tensor.isnan().all() for tensor in pool.kv(0))
