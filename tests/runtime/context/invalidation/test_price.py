"""What an invalidation costs: the source's example, and the choice against every other way to treat the same."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.invalidation.price import (
    Choice,
    Invalid,
    Option,
    Stakes,
    Treatment,
    break_even_turns,
    choose,
    edited,
)
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.tokenizer import TokenIds

CONTEXT, POSITION, STALE, DELTA = 28_672, 4200, 850, 128
"""invalidate_850: 850 stale tokens at 4,200 of 28,672, against 128 tokens at the tail."""
H100_70B_FP8 = TokenCountOracle(prices=Prices(), tokens_per_second=2010e12 / (2 * 70e9))
PROMPT = np.arange(CONTEXT, dtype=np.int32)
NEW = np.arange(100_000, 100_000 + DELTA, dtype=np.int32)
EMPTY = np.empty(0, np.int32)


def stale(instead: TokenIds = EMPTY) -> Invalid:
    treatment = Treatment.IN_PLACE if instead.size else Treatment.EVICT
    return Invalid(1, ((POSITION, POSITION + STALE),), treatment, instead, NEW)


def option(new: TokenIds) -> Option:
    return Option(int(new.size), H100_70B_FP8.price(PROMPT, new).tokens_recomputed)


def test_invalidate_850() -> None:
    evicted, kept = edited(PROMPT, [stale()], []), edited(PROMPT, [], [NEW])
    replaced = edited(PROMPT, [stale(np.full(STALE, 7, np.int32))], [])
    hard, in_place, tail = (H100_70B_FP8.price(PROMPT, new) for new in (evicted, replaced, kept))
    assert (hard.tokens_recomputed, in_place.tokens_recomputed, tail.tokens_recomputed) == (
        23_622,
        24_472,
        DELTA,
    )
    assert in_place.seconds == pytest.approx(1.7045174129353233)
    assert tail.seconds == pytest.approx(0.00891542288557214)
    assert in_place.tokens_recomputed / tail.tokens_recomputed == pytest.approx(191.1875)
    assert hard.tokens_recomputed / tail.tokens_recomputed == pytest.approx(184.546875)
    with_turn = edited(PROMPT, [stale()], [NEW])
    assert break_even_turns(option(with_turn), option(kept), Prices()) == pytest.approx(250.11529411764707)


@pytest.mark.parametrize(("turns", "treatment"), [(217, Treatment.EVICT), (216, Treatment.TAIL)])
def test_the_choice_follows_the_break_even(turns: float, treatment: Treatment) -> None:
    """The 128 tokens at the tail are carried as well where nothing is evicted: 23,494 x 2.7 / (978 x 0.3) is 216.2."""
    assert chosen(Stakes(turns)).treatments == {1: treatment}


def chosen(stakes: Stakes, cached: int | None = None) -> Choice:
    return choose(PROMPT, [stale()], oracle=H100_70B_FP8, prices=Prices(), stakes=stakes, cached=cached)


def test_eviction_is_free_when_the_suffix_is_cold() -> None:
    assert chosen(Stakes(1), cached=POSITION).treatments == {1: Treatment.EVICT}
    assert chosen(Stakes(1), cached=POSITION).option.dollars(Prices(), Stakes(1)) < chosen(
        Stakes(1), cached=POSITION
    ).keep.dollars(Prices(), Stakes(1))
    assert chosen(Stakes(1), cached=CONTEXT).treatments == {1: Treatment.TAIL}


def test_risk_is_a_price_too() -> None:
    assert chosen(Stakes(20, misread=0.0, misread_tokens=30_000)).treatments == {1: Treatment.TAIL}
    assert chosen(Stakes(20, misread=0.2, misread_tokens=30_000)).treatments == {1: Treatment.EVICT}


def test_nonsense_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="turns_left is 0"):
        Stakes(0)
    with pytest.raises(ValueError, match="misread is 2"):
        Stakes(misread=2)


def test_break_even_where_one_way_is_better_at_once_or_never() -> None:
    small, large = Option(100, 10), Option(200, 10)
    assert break_even_turns(small, large, Prices()) == 0.0
    assert break_even_turns(Option(200, 20), small, Prices()) == float("inf")


@st.composite
def invalid_sets(draw: st.DrawFn) -> list[Invalid]:
    """Up to five observations that do not touch, in a prompt of 120 tokens."""
    edges = sorted(draw(st.sets(st.integers(0, 119), min_size=2, max_size=10)))
    made = []
    for seq, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=False), 1):
        rewrite = draw(st.sampled_from([None, Treatment.EVICT, Treatment.IN_PLACE]))
        instead = np.full(2 if rewrite is Treatment.IN_PLACE else 0, 500 + seq, np.int32)
        made.append(Invalid(seq, ((start, end),), rewrite, instead, np.full(3, 700 + seq, np.int32)))
    return made


@settings(max_examples=60, deadline=None)
@given(
    invalid_sets(),
    st.floats(1, 2000),
    st.floats(0, 1),
    st.integers(0, 120),
    st.sampled_from([0.01, 0.3, 3.0]),
)
def test_no_other_way_to_treat_them_is_cheaper(
    invalid: list[Invalid], turns: float, misread: float, cached: int, price_cached: float
) -> None:
    """Against every subset, not only those behind one place."""
    prompt = np.arange(120, dtype=np.int32)
    prices, stakes = Prices(full=3.0, cached=price_cached), Stakes(turns, misread, 10)
    oracle = TokenCountOracle()
    made = choose(prompt, invalid, oracle=oracle, prices=prices, stakes=stakes, cached=cached)
    movable = [one for one in invalid if one.rewrite is not None]
    costs = []
    for wanted in itertools.chain.from_iterable(
        itertools.combinations(movable, n) for n in range(len(movable) + 1)
    ):
        keep = [one for one in invalid if one not in wanted]
        ids = [list(prompt)]
        for one in sorted(wanted, key=lambda one: -one.start):
            (span,) = one.spans
            ids[0][span[0] : span[1]] = list(one.instead)
        new = np.array(ids[0] + [token for one in keep for token in one.tail], np.int32)
        shared = 0
        while shared < min(cached, new.size) and new[shared] == prompt[shared]:
            shared += 1
        costs.append(Option(new.size, new.size - shared, len(keep)).dollars(prices, stakes))
    assert made.option.dollars(prices, stakes) == pytest.approx(min(costs))
    assert set(made.treatments) == {one.seq for one in invalid}
