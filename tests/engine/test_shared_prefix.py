"""Groups of sequences that share pages, against trying everything; and what the cost model says of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.engine.shared_prefix import AttentionSizes, best_intervals, find_shared, saved_seconds
from deeproot.kernels.devices import DEVICES


def best_saving(common: list[int]) -> int:
    """All together, or the best of the parts between those neighbours that share the least."""
    if not common:
        return 0
    least, parts = min(common), [list[int]()]
    for pages in common:
        if pages == least:
            parts.append([])
        else:
            parts[-1].append(pages)
    return max(len(common) * least, sum(map(best_saving, parts)))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_intervals_save_what_they_can(common: list[int]) -> None:
    found = best_intervals(common)
    for first, last, pages in found:
        assert first < last
        assert 0 < pages == min(common[first:last])
    assert all(a[1] < b[0] for a, b in zip(sorted(found), sorted(found)[1:], strict=False)), "groups overlap"
    saved = sum((last - first) * pages for first, last, pages in found)
    assert saved == best_saving(common)
    spans = itertools.combinations(range(len(common) + 1), 2)
    assert saved >= max((last - first) * min(common[first:last]) for first, last in spans)


def test_a_long_chain_of_prefixes_needs_no_deep_recursion() -> None:
    assert best_intervals(list(range(1, 5001)))


@settings(max_examples=200, deadline=None)
@given(
    table=st.integers(1, 7).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 2), min_size=width, max_size=width), min_size=1, max_size=6
        )
    ),
    data=st.data(),
)
def test_groups_share_only_valid_equal_pages(table: list[list[int]], data: st.DataObject) -> None:
    pages = np.array(table, np.int32)
    n, width = pages.shape
    counts = np.array(data.draw(st.lists(st.integers(0, width), min_size=n, max_size=n)), np.int64)
    rows = np.array(data.draw(st.permutations(range(n))), np.int64)
    groups = find_shared(pages, rows, counts)
    seen = [int(row) for group in groups for row in group.members]
    assert len(seen) == len(set(seen))
    count_of = dict(zip(rows.tolist(), counts.tolist(), strict=True))
    for group in groups:
        assert len(group.members) > 1
        assert 0 < group.num_pages <= min(count_of[int(row)] for row in group.members)
        heads = pages[group.members, : group.num_pages]
        assert (heads == heads[0]).all()
    saved = sum((len(group.members) - 1) * group.num_pages for group in groups)
    assert saved >= best_pair(pages, count_of), "two sequences share more than all groups save"


def best_pair(pages: np.ndarray, count_of: dict[int, int]) -> int:
    best = 0
    for i in count_of:
        for j in count_of:
            if i != j:
                limit = min(count_of[i], count_of[j])
                different = np.flatnonzero(pages[i, :limit] != pages[j, :limit])
                best = max(best, int(different[0]) if len(different) else limit)
    return best


SIZES = AttentionSizes(num_qo_heads=32, num_kv_heads=8, head_dim=128, kv_itemsize=2)


@pytest.mark.parametrize(("num_shared", "count", "pays"), [(64, 2, False), (64, 32, False), (8192, 8, True)])
def test_many_decodes_of_a_long_prefix_pay(num_shared: int, count: int, pays: bool) -> None:
    saved = saved_seconds(num_shared, [(1, num_shared + 100)] * count, SIZES, DEVICES["H100 SXM"])
    assert (saved > 8e-6) == pays


def test_a_saving_by_hand() -> None:
    """7 times 8192 tokens of 4096 bytes are not read, but 8 rows of two states are merged; bytes bound all three."""
    read = 7 * 8192 * 2 * 8 * 128 * 2
    merged = 8 * 32 * (2 * (4 * 128 + 4) + 2 * 128 + 4)
    saved = saved_seconds(8192, [(1, 8291)] * 8, SIZES, DEVICES["H100 SXM"])
    assert saved == pytest.approx((read - merged) / 3.35e12)


def test_chunks_that_compute_pay_less_than_their_merge() -> None:
    """Bound by matrix products, reading less is worth nothing."""
    assert saved_seconds(8192, [(512, 8192)] * 4, SIZES, DEVICES["H100 SXM"]) < 0
