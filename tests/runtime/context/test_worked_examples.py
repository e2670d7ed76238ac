"""The source's numbers on layout and budget, out of the library's own code."""

from collections.abc import Callable

import numpy as np
import pytest

from deeproot.runtime.context.budget import Budget, BudgetError, check_total
from deeproot.runtime.context.compaction.estimates import (
    compression_ratio,
    constraints_kept,
    reductions,
    staged_tokens,
    wasted_turns,
)
from deeproot.runtime.context.prefix_cost import PrefixCost, Prices, common_prefix, prefix_cost
from deeproot.runtime.context.report import Variants
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.tokenizer import TokenIds

ROOT, TRUNK, LEAF, TURNS, STAMP = 4096, 24_576, 4096, 20, 10
TRUNK_CHANGES = (7, 14)


def trajectory(*, timestamp: bool) -> list[TokenIds]:
    """20 calls of 32,768 tokens: the trunk changes twice, the leaf each turn; ids tell the versions apart."""
    prompts = []
    version = 0
    for turn in range(TURNS):
        version += turn in TRUNK_CHANGES
        leaf = LEAF - (STAMP if timestamp else 0)
        prompt = [np.full(ROOT, 1), np.full(TRUNK, 100 + version), np.full(leaf, 1000 + turn)]
        if timestamp:
            prompt.insert(0, np.full(STAMP, 2000 + turn))
        prompts.append(np.concatenate(prompt).astype(np.int32))
    return prompts


def test_layout_cost() -> None:
    stable, unstable = prefix_cost(trajectory(timestamp=False)), prefix_cost(trajectory(timestamp=True))
    assert (stable.total_tokens, unstable.total_tokens) == (655_360, 655_360)
    assert (stable.computed, stable.cached, unstable.computed) == (159_744, 495_616, 655_360)
    assert stable.hit_rate == 0.75625
    assert stable.dollars(Prices()) == pytest.approx(0.6279168)
    assert unstable.dollars(Prices()) == pytest.approx(1.96608)
    assert unstable.dollars(Prices()) / stable.dollars(Prices()) == pytest.approx(3.131115459882583)
    assert unstable.computed / stable.computed == pytest.approx(4.102564102564102)
    assert stable.dollars(Prices(write_premium=1.25)) == pytest.approx(0.7477248)


def test_fleet_cost() -> None:
    calls = [np.arange(30_000, dtype=np.int32)] * 20
    best = prefix_cost(calls)
    assert PrefixCost(600_000, 600_000, 0).dollars(Prices()) == pytest.approx(1.8)
    assert best.dollars(Prices()) == pytest.approx(0.261)


def test_cache_keys() -> None:
    assert Variants(("a", "b", "c")).keys == 8
    assert Variants(()).keys == 1


def test_watermarks() -> None:
    budget = Budget(24_000)
    assert (budget.high, budget.low) == (0.8, 0.5)


def test_two_policies() -> None:
    """30 turns of 2,400 tokens in 16,384: prose that loses 15% a compaction, and a checkpoint that loses nothing."""
    budget, raw = Budget(16_384), 30 * 2400
    prose, checkpoint = staged_tokens(raw, 6.0), staged_tokens(raw, 3.5)
    assert (prose, checkpoint) == (12_000, pytest.approx(20571.428571428572))
    check_total(int(prose), budget.total)
    with pytest.raises(BudgetError, match="has 20571 tokens for a budget of 16384"):
        check_total(int(checkpoint), budget.total)
    check_total(14_500, budget.total)
    assert compression_ratio(raw, 14_500) == pytest.approx(4.9655172413793105)
    assert constraints_kept(0.15, 6) == pytest.approx(0.37714951562499993)
    assert (wasted_turns(30, 0.2, 3), wasted_turns(30, 0.02, 3)) == (18.0, pytest.approx(1.8))


def test_constraint_retention() -> None:
    assert constraints_kept(0.2, 5) == pytest.approx(0.3276800000000001)
    assert constraints_kept(0.2, 5, constraints=3) == pytest.approx(0.3276800000000001**3)
    assert constraints_kept(0.0, 50, constraints=20) == 1.0


def test_cascade() -> None:
    stages = [128_000, 24_000, 6_000, 1_200]
    assert reductions(stages)[:2] == pytest.approx([0.8125, 0.953125])
    assert reductions(stages[1:])[0] == pytest.approx(0.75)
    assert compression_ratio(stages[0], stages[-1]) == pytest.approx(106.66666666666667)


@pytest.mark.parametrize(
    "call",
    [
        lambda: staged_tokens(1, 0),
        lambda: compression_ratio(1, 0),
        lambda: constraints_kept(1.5, 1),
        lambda: reductions([]),
    ],
)
def test_estimates_refuse_nonsense(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="give"):
        call()


def test_shares_of_the_three_zones() -> None:
    shares = Budget(100).shares
    assert [shares[zone] for zone in (Zone.ROOT, Zone.TRUNK, Zone.LEAF)] == [
        (0.1, 0.2),
        (0.5, 0.7),
        (0.2, 0.3),
    ]


def test_common_prefix_and_empty_logs() -> None:
    one, other = np.array([1, 2, 3], np.int32), np.array([1, 2], np.int32)
    assert (common_prefix(one, other), common_prefix(one, one), common_prefix(one, other[:0])) == (2, 3, 0)
    assert prefix_cost([]).hit_rate == 0.0
