"""The order of classes and priorities."""

from hypothesis import given
from hypothesis import strategies as st

from deeproot.engine.eviction import MAX_PRIORITY, EvictionClass, class_of, rank_of

LEAF, TRUNK, ROOT = EvictionClass.LEAF, EvictionClass.TRUNK, EvictionClass.ROOT
kinds, priorities = st.sampled_from(EvictionClass), st.integers(0, MAX_PRIORITY)


@given(kind=kinds, priority=priorities)
def test_a_rank_says_its_class(kind: EvictionClass, priority: int) -> None:
    assert class_of(rank_of(kind, priority)) is kind


@given(kind=kinds, priority=priorities, other=kinds, others=priorities)
def test_between_leaf_and_trunk_the_priority_comes_before_the_class(
    kind: EvictionClass, priority: int, other: EvictionClass, others: int
) -> None:
    def key(kind: EvictionClass, priority: int) -> tuple[int, int, int]:
        of_a_conversation = kind in (LEAF, TRUNK)
        coarse = LEAF if of_a_conversation else kind
        return coarse, priority if of_a_conversation or kind is ROOT else 0, kind

    lower = rank_of(kind, priority) < rank_of(other, others)
    if EvictionClass.SHARED not in (kind, other):  # no tenant gives it a priority
        assert lower == (key(kind, priority) < key(other, others))
    if kind in (LEAF, TRUNK) and other > TRUNK:
        assert lower
