"""Is B other than A, or is it noise? Verdicts on two sets of samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import comb, isclose

import numpy as np
from numpy.typing import NDArray

from deeproot.bench.report.result import How, Metric

Floats = NDArray[np.float64]

FEWEST = 4
"""Samples on each side: with fewer, no order of them is rarer than one in twenty."""
_ALPHA = 0.05
_LEAST_EFFECT = 0.02
"""Smaller differences of the medians are not spoken of, however sure they are."""
_EXACT = 20_000
_RESAMPLES = 4_000


class Verdict(StrEnum):
    """What can be said of B beside A."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    NOT_SEEN = "no difference seen"
    TOO_FEW = "too few samples"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio`: of the medians, B over A; None if A's is 0. `interval`: where it lies with 95%, by resampling, of measured
    ones. `p`: how often as clear a difference of ranks comes by chance."""

    name: str
    unit: str
    how: How
    a: float
    b: float
    ratio: float | None
    interval: tuple[float, float] | None
    p: float | None
    verdict: Verdict


def compare(a: Metric, b: Metric) -> Comparison:
    """B beside A. Raises ValueError if they are not the same quantity."""
    if (a.name, a.unit, a.how) != (b.name, b.unit, b.how):
        raise ValueError(f"{a.name!r} in {a.unit} and {b.name!r} in {b.unit} are not the same quantity")
    ratio = b.median / a.median if a.median else None
    lower = b.median < a.median
    changed = Verdict.BETTER if lower != a.higher_is_better else Verdict.WORSE
    if a.how is not How.MEASURED:
        same = isclose(a.median, b.median, rel_tol=1e-9)
        return Comparison(
            a.name, a.unit, a.how, a.median, b.median, ratio, None, None, Verdict.SAME if same else changed
        )
    if min(len(a.samples), len(b.samples)) < FEWEST:
        return Comparison(a.name, a.unit, a.how, a.median, b.median, ratio, None, None, Verdict.TOO_FEW)
    p = rank_test(a.samples, b.samples)
    clear = p <= _ALPHA and not isclose(a.median, b.median, rel_tol=_LEAST_EFFECT)
    return Comparison(
        a.name,
        a.unit,
        a.how,
        a.median,
        b.median,
        ratio,
        _interval(a.samples, b.samples),
        p,
        changed if clear else Verdict.NOT_SEEN,
    )


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the rank-sum test: the share of all ways to divide the samples whose ranks differ at least as much.

    Exact for few samples, else by 20,000 random ways.
    """
    ranks = _midranks(np.array([*a, *b]))
    expected = float(ranks.sum()) * len(a) / len(ranks)
    seen = abs(float(ranks[: len(a)].sum()) - expected) - 1e-9
    if comb(len(ranks), len(a)) <= _EXACT:
        sums: list[float] = [abs(sum(chosen) - expected) for chosen in combinations(ranks.tolist(), len(a))]
        return sum(one >= seen for one in sums) / len(sums)
    rng = np.random.default_rng(0)
    orders = rng.permuted(np.tile(ranks, (_EXACT, 1)), axis=1)[:, : len(a)].sum(axis=1)
    # The division that was seen is one of them: p is never 0.
    return (int((np.abs(orders - expected) >= seen).sum()) + 1) / (_EXACT + 1)


def _midranks(values: Floats) -> Floats:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    made: Floats = (ends - (counts - 1) / 2)[inverse]
    return made


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float] | None:
    rng = np.random.default_rng(0)
    medians_a = resampled_medians(a, rng, _RESAMPLES)
    medians_b = resampled_medians(b, rng, _RESAMPLES)
    return None if (medians_a == 0).any() else middle_95(medians_b / medians_a)


def resampled_medians(values: Sequence[float], rng: np.random.Generator, times: int) -> Floats:
    """`[times]` medians of as many values, drawn anew each time."""
    medians: Floats = np.median(rng.choice(np.array(values), (times, len(values))), axis=1)
    return medians


def middle_95(values: Floats) -> tuple[float, float]:
    """Between which two 95% of them lie."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
