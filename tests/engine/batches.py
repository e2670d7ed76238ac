"""Batches built from sequences and their pages, without a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deeproot.engine.batch import ForwardBatch, SamplingBatch


@dataclass(frozen=True)
class Chunk:
    """What one sequence computes in a step."""

    ids: Sequence[int]
    """The sequence so far, new tokens included."""
    num_cached: int
    """Of these, how many have K and V already."""
    pages: Sequence[int]
    """At least as many as `ids` needs."""
    all_logits: bool = False
    """Logits of every new token instead of the last."""


def make_batch(
    chunks: Sequence[Chunk], page_size: int, sampling: SamplingBatch | None = None
) -> ForwardBatch:
    """The batch of a step. Entries of the page table past a sequence's pages are page 0."""
    positions = [np.arange(c.num_cached, len(c.ids)) for c in chunks]
    pages = [np.asarray(c.pages, np.int64) for c in chunks]
    slots = [
        p[pos // page_size] * page_size + pos % page_size for p, pos in zip(pages, positions, strict=True)
    ]
    table = np.zeros((len(chunks), max(map(len, pages))), np.int32)
    for row, own in zip(table, pages, strict=True):
        row[: len(own)] = own
    ends = np.cumsum([len(p) for p in positions])
    starts = ends - [len(p) for p in positions]
    indices = [
        np.arange(start, end) if c.all_logits else np.array([end - 1])
        for c, start, end in zip(chunks, starts, ends, strict=True)
    ]
    logits_indices = np.concatenate(indices).astype(np.int64)
    return ForwardBatch(
        input_ids=np.concatenate([np.asarray(c.ids, np.int32)[c.num_cached :] for c in chunks]),
        positions=np.concatenate(positions).astype(np.int64),
        slot_mapping=np.concatenate(slots).astype(np.int64),
        page_table=table,
        cu_seqlens_q=np.concatenate([[0], ends]).astype(np.int32),
        seq_lens=np.array([len(c.ids) for c in chunks], np.int32),
        logits_indices=logits_indices,
        sampling=sampling or greedy(len(logits_indices)),
    )


def greedy(n: int) -> SamplingBatch:
    """Settings of `n` greedy rows."""
    return settings(n)


def settings(
    n: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
) -> SamplingBatch:
    """`n` rows alike, but for the position, which counts on from `position`."""
    return SamplingBatch(
        temperature=np.full(n, temperature, np.float32),
        top_k=np.full(n, top_k, np.int32),
        top_p=np.full(n, top_p, np.float32),
        min_p=np.full(n, min_p, np.float32),
        seeds=np.full(n, seed, np.uint64),
        positions=np.arange(position, position + n, dtype=np.int64),
    )
