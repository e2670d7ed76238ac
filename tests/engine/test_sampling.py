"""Sampling against distributions and filters written out one row at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.engine.batches import settings

from deeproot.engine.batch import SamplingBatch
from deeproot.engine.sampling import sample, uniforms

FIELDS = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")


def brute_force(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """The exact distribution of one row, `[vocab_size]` float64: HF's chain, ties to the lower id."""
    scaled = logits.astype(np.float64) / temperature
    probabilities = np.exp(scaled - scaled.max())
    probabilities /= probabilities.sum()
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if top_k:
        order = order[:top_k]
    left = probabilities[order] / probabilities[order].sum()
    kept, mass = [], 0.0
    for token, p in zip(order, left, strict=True):
        if kept and mass >= top_p:
            break
        kept.append(token)
        mass += p
    best = probabilities[order[0]]
    kept = [token for token in kept if probabilities[token] >= min_p * best]
    result = np.zeros(len(logits))
    result[kept] = probabilities[kept]
    return result / result.sum()


def draw(logits: np.ndarray, n: int, **options: float) -> np.ndarray:
    """`n` draws of one row, at as many positions."""
    rows = torch.from_numpy(logits.astype(np.float32)).expand(n, -1)
    return sample(rows, settings(n, **options)).numpy()


FILTERS = {
    "none": (1.0, 0, 1.0, 0.0),
    "hot": (1.8, 0, 1.0, 0.0),
    "cold": (0.4, 0, 1.0, 0.0),
    "top-k": (1.0, 7, 1.0, 0.0),
    "top-p": (1.0, 0, 0.8, 0.0),
    "min-p": (1.0, 0, 1.0, 0.04),
    "all": (1.5, 12, 0.9, 0.08),
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_draws_follow_the_exact_distribution(name: str, seed: int) -> None:
    """Chi-square: under 4.5 deviations over its mean, which chance passes less than once in 10,000 runs.

    The generator is seeded, so the test gives the same result each time.
    """
    temperature, top_k, top_p, min_p = FILTERS[name]
    logits = np.random.default_rng(3).normal(0, 1.5, 40)
    expected = brute_force(logits, temperature, top_k, top_p, min_p)
    n = 20000
    tokens = draw(logits, n, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    counts = np.bincount(tokens, minlength=40)
    assert counts[expected == 0].sum() == 0
    likely = expected * n >= 5
    observed, wanted = counts[likely], expected[likely] * n
    statistic = float(((observed - wanted) ** 2 / wanted).sum())
    degrees = likely.sum() - 1
    assert degrees >= 3
    assert statistic < degrees + 4.5 * np.sqrt(2 * degrees)


@hypothesis_settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.integers(-8, 8).map(lambda x: x / 2), min_size=1, max_size=30),
    temperature=st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.0078125, 1.0, width=32),
    min_p=st.floats(0.0, 1.0, width=32),
    seed=st.integers(0, 2**64 - 1),
)
def test_tokens_come_from_the_filtered_support(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """Many ties. Where a filter's edge falls within rounding, either side of it is right."""
    row = np.array(logits, np.float32)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    looser = brute_force(row, temperature, top_k, top_p + 1e-9, min_p * (1 - 1e-9))
    tokens = draw(row, 64, seed=seed, **options)
    assert (looser[tokens] > 0).all()


@pytest.mark.parametrize("top_k", [0, 3, 1023, 1024, 1025, 2000, 4999, 5000, 10**6])
@pytest.mark.parametrize("top_p", [0.3, 0.999, 1.0])
@pytest.mark.parametrize("spread", [0.0, 0.001, 0.5, 4.0])
def test_large_vocabularies_are_inverted_exactly(top_k: int, top_p: float, spread: float) -> None:
    """Each draw is the very token at which the running sum by rank passes its uniform number.

    Flat rows need more ranks than are looked at first; with spread 0 every token ties.
    """
    logits = np.random.default_rng(4).normal(0, spread, 5000).astype(np.float32)
    ranked = top_k > 0 or top_p < 1
    order = np.lexsort((np.arange(5000), -logits)) if ranked else np.arange(5000)
    running = brute_force(logits, 1.0, top_k, np.float32(top_p), 0.0)[order].cumsum()
    positions = np.arange(30)
    wanted = uniforms(np.full(30, 9, np.uint64), positions)
    tokens = draw(logits, 30, temperature=1.0, top_k=top_k, top_p=top_p, seed=9)
    ranks = np.argsort(order)[tokens]
    below = np.concatenate([[0], running])[ranks]
    assert (below <= wanted + 1e-7).all()
    assert (wanted <= running[ranks] + 1e-7).all()


def test_a_row_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(5)
    n = 24
    logits = torch.from_numpy(rng.normal(0, 2, (n, 3000)).astype(np.float32))
    batch = SamplingBatch(
        temperature=rng.choice([0.0, 0.5, 1.0, 1.5], n).astype(np.float32),
        top_k=rng.choice([0, 1, 50, 2000], n).astype(np.int32),
        top_p=rng.choice([1.0, 0.5, 0.95], n).astype(np.float32),
        min_p=rng.choice([0.0, 0.01, 0.3], n).astype(np.float32),
        seeds=rng.integers(0, 2**64, n, dtype=np.uint64),
        positions=rng.integers(0, 10**6, n),
    )

    def rows(index: np.ndarray) -> list[int]:
        part = SamplingBatch(**{name: getattr(batch, name)[index] for name in FIELDS})
        return sample(logits[torch.from_numpy(index)], part).tolist()

    together = rows(np.arange(n))
    assert [rows(np.array([i]))[0] for i in range(n)] == together
    shuffled = rng.permutation(n)
    assert rows(shuffled) == [together[i] for i in shuffled]


def test_greedy_rows_take_the_first_of_the_greatest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 0.0, 0.0, 5.0]])
    assert sample(logits, settings(2)).tolist() == [1, 0]
    mixed = replace(settings(2, top_p=0.1, seed=8), temperature=np.array([0.0, 1.0], np.float32))
    assert sample(logits, mixed).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-38, 1e-6, 1e-4])
def test_tiny_temperatures_are_greedy(temperature: float) -> None:
    logits = np.random.default_rng(6).normal(0, 5, 500)
    assert set(draw(logits, 50, temperature=temperature, seed=1)) == {int(logits.argmax())}


def test_top_k_of_one_and_top_p_near_zero_are_greedy() -> None:
    logits = np.random.default_rng(7).normal(0, 1, 500).astype(np.float32)
    best = {int(logits.argmax())}
    assert set(draw(logits, 50, temperature=2.0, top_k=1, seed=1)) == best
    assert set(draw(logits, 50, temperature=2.0, top_p=1e-6, seed=1)) == best
    assert set(draw(logits, 50, temperature=2.0, min_p=1.0, seed=1)) == best


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_logits_still_give_ids_and_hurt_no_other_row(bad: float) -> None:
    rng = np.random.default_rng(8)
    logits = torch.from_numpy(rng.normal(0, 1, (3, 2000)).astype(np.float32))
    whole = {name: sample(logits, settings(3, 1.0, **options)) for name, options in BROKEN.items()}
    logits[1] = bad
    for name, options in BROKEN.items():
        tokens = sample(logits, settings(3, 1.0, **options))
        assert ((tokens >= 0) & (tokens < 2000)).all()
        assert tokens[[0, 2]].tolist() == whole[name][[0, 2]].tolist()


BROKEN: dict[str, dict[str, int]] = {"by id": {}, "by rank": {"top_k": 40}}


def test_uniform_numbers_differ_by_seed_and_position() -> None:
    seeds = np.arange(300, dtype=np.uint64).repeat(300)
    positions = np.tile(np.arange(300), 300)
    numbers = uniforms(seeds, positions)
    assert len(np.unique(numbers)) == len(numbers)
    assert ((numbers >= 0) & (numbers < 1)).all()
    table = numbers.reshape(300, 300)
    for shifted in (table[1:], table[:, 1:], table[1:, 1:], table[1:, :-1]):
        pairs = np.corrcoef(table[: shifted.shape[0], : shifted.shape[1]].ravel(), shifted.ravel())[0, 1]
        assert abs(pairs) < 0.02
    counts = np.histogram(numbers, 100, (0, 1))[0]
    assert ((counts - 900) ** 2 / 900).sum() < 99 + 4.5 * np.sqrt(2 * 99)


def test_uniform_numbers_are_splitmix64() -> None:
    """The published generator, written with Python's integers."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    for seed, position in ((0, 0), (1, 5), (2**64 - 1, 2**40)):
        state = mix((seed + 0x9E3779B97F4A7C15) % 2**64)
        bits = mix((state + (position + 1) * 0x9E3779B97F4A7C15) % 2**64)
        number = uniforms(np.array([seed], np.uint64), np.array([position]))[0]
        assert number == (bits >> 11) / 2**53
