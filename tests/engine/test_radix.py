"""The prefix tree, case by case; any order of calls is in `test_radix_model.py`."""

import numpy as np
import pytest
from tests.engine.brute_tree import as_bytes

from deeproot.engine.eviction import EvictionClass
from deeproot.engine.ghosts import Ghosts
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_checks import check_tree
from deeproot.engine.radix_node import NO_PAGES, SHARED, Node, Route, mark_of


def insert(tree: RadixCache, ids: list[int], first_page: int) -> Node:
    pages = np.arange(first_page, first_page - (-len(ids) // tree.page_size), dtype=np.int32)
    return tree.insert(as_bytes(ids), pages).node


@pytest.mark.parametrize("page_size", [16, 32, 64, 128])
def test_reuse_is_exact_in_tokens_whatever_the_page(page_size: int) -> None:
    tree = RadixCache(page_size)
    insert(tree, list(range(300)), 0)
    ids = [*range(211), *range(1000, 1100)]
    found = tree.match(as_bytes(ids))
    assert found.num_reusable == 211
    assert tree.probe(as_bytes(ids)) == 211


def test_candidates_stay_bounded_by_the_tree() -> None:
    tree = RadixCache(4)
    for session in range(20):
        insert(tree, [session] * 8, session * 2)
    for i in range(20_000):
        tree.match(as_bytes([i % 20] * 8))
    assert len(tree.order.candidates()) <= 2 * tree.num_nodes + 64


def test_unlock_without_lock_is_an_error() -> None:
    tree = RadixCache(4)
    node = insert(tree, [1] * 8, 0)
    with pytest.raises(RuntimeError, match="unlock"):
        tree.unlock(node)


def test_namespaces_share_memory_and_nothing_else() -> None:
    tree = RadixCache(4)
    ids = as_bytes(list(range(10)))
    for i, name in enumerate((b"", b"a", b"b")):
        route = tree.route(name, 0)
        assert tree.probe(ids, route) == tree.match(ids, route=route).num_reusable == 0
        tree.insert(ids, np.arange(3 * i, 3 * i + 3, dtype=np.int32), route=route)
        check_tree(tree)
        assert tree.match(ids, route=route).pages.tolist() == [3 * i, 3 * i + 1]
    assert tree.num_pages == 9
    assert sorted(tree.evict(9).tolist()) == list(range(9))
    for name, evicted in ((b"c", 0), (b"a", 10)):
        route = tree.route(name, 0)
        assert tree.once_cached(ids, tree.match(ids, route=route), 10, route) == evicted


def test_a_namespace_that_has_nothing_cached_costs_nothing() -> None:
    tree = RadixCache(4)
    for i in range(100):
        tree.match(as_bytes([i] * 8), route=tree.route(str(i).encode(), 0))
    assert not tree.root.children
    with pytest.raises(ValueError, match="255 bytes"):
        tree.route(b"x" * 255, 0)


def test_a_declared_segment_is_stored_once_and_goes_last() -> None:
    tree = RadixCache(4)
    declared = list(range(10))
    for i, name in enumerate((b"a", b"b")):
        route = tree.route(name, len(declared))
        ids = as_bytes([*declared, 50 + i, 51, 52, 53])
        found = tree.match(ids, route=route)
        assert found.num_reusable == 8 * i, "whole pages"
        taken = tree.insert(ids, np.arange(4 * i, 4 * i + 4, dtype=np.int32), route=route)
        assert taken.pages.tolist()[:2] == [0, 1]
        check_tree(tree)
    assert tree.probe(as_bytes(declared), tree.route(b"c", 0)) == 0, "who does not begin with it"
    assert tree.probe(as_bytes([*declared, 50]), tree.route(b"c", 10)) == 8
    assert sorted(tree.evict(4).tolist()) == [2, 3, 6, 7]
    assert tree.num_pages == tree.order.num_pages(EvictionClass.SHARED) == 2


def test_what_is_remembered_of_the_evicted_is_bounded() -> None:
    ghosts = Ghosts(max_nodes=10, max_bytes=100)
    root, route = Node(b"", NO_PAGES, None, whose=SHARED), Route(mark_of(b""))
    for i in range(1000):
        ghosts.add([Node(as_bytes([i] * (i % 30)), NO_PAGES, root, 0, route.mark)])
        assert len(ghosts) <= 10
        assert ghosts.num_bytes <= 100
    ids = as_bytes([999] * 9)
    ghosts.add([Node(ids, NO_PAGES, root, 0, route.mark)])
    assert ghosts.reach(ids + ids, 0, 72, route) == 36
    assert ghosts.reach(ids + ids, 0, 20, route) == 20
    assert ghosts.reach(as_bytes([998] * 9), 0, 36, route) == 0
