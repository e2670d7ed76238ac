"""Which sequences of a batch start with the same pages, and whether it pays to read those once for all."""

from dataclasses import dataclass

import numpy as np

from deeproot.engine.batch import Int32Array, Int64Array
from deeproot.kernels import cost
from deeproot.kernels.devices import Device

EXTRA_LAUNCHES_S = 8e-6
"""What a layer pays for reading a prefix apart, besides its work: two launches more. An estimate, not measured."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Sequences whose first pages are the same pages, not only alike."""

    members: Int64Array
    """Their rows of the page table, two or more."""
    num_pages: int


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """What the cost of attention depends on, besides lengths."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    kv_itemsize: int


def find_shared(page_table: Int32Array, rows: Int64Array, num_pages: Int64Array) -> list[SharedPrefix]:
    """Group some rows of a page table so that most pages need not be read again; a row is in one group at most.

    num_pages: `[len(rows)]` how many of each row's first pages may be shared; what stands behind them is ignored.
    A group of n rows that share p pages saves `(n - 1) * p`; the sum is at least that of the best single group.
    """
    able = num_pages > 0
    rows, num_pages = rows[able], num_pages[able]
    if len(rows) < 2:
        return []
    first_pages = page_table[rows, 0]
    values, counts = np.unique(first_pages, return_counts=True)
    groups: list[SharedPrefix] = []
    for page in values[counts > 1]:
        same = np.flatnonzero(first_pages == page)
        groups += _split(page_table, rows[same], num_pages[same])
    return groups


def _split(page_table: Int32Array, rows: Int64Array, num_pages: Int64Array) -> list[SharedPrefix]:
    """The groups among rows that share at least their first page."""
    width = int(num_pages.max())
    pages = page_table[rows, :width].copy()
    absent = np.arange(width) >= num_pages[:, None]
    # Numbers of their own, so that they are equal to nothing.
    np.copyto(pages, -1 - np.arange(len(rows), dtype=np.int32)[:, None], where=absent)
    # Any order will do that brings equal beginnings together; that of bytes is a memcmp a comparison.
    keys = [row.tobytes() for row in pages]
    order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
    pages, rows = pages[order], rows[order]
    different = pages[1:] != pages[:-1]
    common = np.where(different.any(1), different.argmax(1), width)
    return [SharedPrefix(rows[i : j + 1], depth) for i, j, depth in best_intervals(common.tolist())]


def best_intervals(common: list[int]) -> list[tuple[int, int, int]]:
    """Good groups of neighbours, as (first, last, pages shared).

    common: pages that neighbours `i` and `i + 1` share. An interval shares the least of its neighbours' numbers, so
    intervals that share as much as they can nest or lie apart; of each, the saving is compared with that of those
    inside it. Whoever is left over by those inside is in no group.
    """
    # Open intervals, deepest last: (pages, first, saving of the best inside, those).
    opened: list[tuple[int, int, int, list[tuple[int, int, int]]]] = [(0, 0, 0, [])]
    for i, depth in enumerate([*common, 0]):
        first, saving, inside = i, 0, list[tuple[int, int, int]]()
        while opened[-1][0] > depth:
            pages, first, saved, best = opened.pop()
            saving, inside = saving + saved, best + inside
            own = (i - first) * pages
            if own >= saving:
                saving, inside = own, [(first, i, pages)]
        pages, start, saved, best = opened[-1]
        if pages == depth:
            opened[-1] = (pages, start, saved + saving, best + inside)
        else:
            opened.append((depth, first, saving, inside))
    return opened[0][3]


def saved_seconds(
    num_shared: int, sequences: list[tuple[int, int]], sizes: AttentionSizes, device: Device
) -> float:
    """By how much the floor of attention of one layer falls if the shared tokens are read once, without launches.

    sequences: (new, cached) tokens of each. Negative where merging the two states costs more than that.
    """
    heads, kv_heads, dim = sizes.num_qo_heads, sizes.num_kv_heads, sizes.head_dim
    apart = cost.paged_prefill(sequences, heads, kv_heads, dim, kv_itemsize=sizes.kv_itemsize)
    together = cost.cascade_prefill(
        num_shared, sequences, heads, kv_heads, dim, kv_itemsize=sizes.kv_itemsize
    )
    merge = cost.merge_states(2, sum(new for new, _ in sequences), heads, dim)
    return (
        cost.floor_seconds(apart, device)
        - cost.floor_seconds(together, device)
        - cost.floor_seconds(merge, device)
    )
