"""Edits, masks and logarithms against their definitions in float64, one token at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.engine.batches import settings

from deeproot.engine.batch import LogitEdits, TokenMask
from deeproot.engine.logit_edits import edited
from deeproot.engine.logprobs import logprobs_of, sampled_logprobs
from deeproot.engine.sampling import sample

VOCAB = 70
"""Not a multiple of 32."""


@st.composite
def edits(draw: st.DrawFn, rows: int) -> LogitEdits:
    places = draw(
        st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, VOCAB - 1)), unique=True, max_size=60)
    )
    numbers = st.floats(-20, 20, width=32)
    size = len(places)
    lists = [
        draw(st.lists(values, min_size=size, max_size=size))
        for values in (numbers, st.floats(0.125, 4, width=32), numbers)
    ]
    bias, repetition, penalty = (np.array(values, np.float32) for values in lists)
    at = np.array(places, np.int64).reshape(-1, 2)
    return LogitEdits(at[:, 0], at[:, 1], bias, repetition, penalty)


@st.composite
def masks(draw: st.DrawFn, rows: int) -> tuple[TokenMask, np.ndarray]:
    """A mask and what it allows, `[rows, VOCAB]`."""
    listed = np.array(sorted(draw(st.sets(st.integers(0, rows - 1)))), np.int64)
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    allowed = np.ones((rows, VOCAB), bool)
    allowed[listed] = generator.random((len(listed), VOCAB)) < draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    padded = np.zeros((len(listed), 96), np.uint8)
    padded[:, :VOCAB] = allowed[listed]
    # Bits behind the vocabulary may be set; they mean nothing.
    padded[:, VOCAB:] = draw(st.integers(0, 1))
    words = np.packbits(padded, axis=1, bitorder="little").view("<i4").astype(np.int32)
    return TokenMask(listed, words), allowed


@hypothesis_settings(max_examples=150, deadline=None)
@given(data=st.data(), rows=st.integers(1, 4), seed=st.integers(0, 1000))
def test_edits_then_masks(data: st.DataObject, rows: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 4, (rows, VOCAB)).astype(np.float32)
    given_edits, (mask, allowed) = data.draw(edits(rows)), data.draw(masks(rows))
    wanted = logits.astype(np.float64)
    fields = (
        given_edits.rows,
        given_edits.token_ids,
        given_edits.bias,
        given_edits.repetition,
        given_edits.penalty,
    )
    for row, token, bias, repetition, penalty in zip(*(f.tolist() for f in fields), strict=True):
        value = wanted[row, token] + bias
        wanted[row, token] = (value / repetition if value > 0 else value * repetition) - penalty
    wanted[~allowed] = -np.inf
    tensor = torch.from_numpy(logits)
    batch = replace(settings(rows), edits=given_edits, mask=mask)
    np.testing.assert_allclose(edited(tensor, batch).numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert np.array_equal(tensor.numpy(), logits), "the model's own logits were changed"
    if allowed.any(axis=1).all():
        tokens = sample(tensor, replace(batch, temperature=np.full(rows, 2.0, np.float32))).numpy()
        assert allowed[np.arange(rows), tokens].all()


def test_no_edits_no_copy() -> None:
    logits = torch.zeros(2, VOCAB)
    assert edited(logits, settings(2)) is logits


def test_a_mask_of_another_width_is_refused() -> None:
    mask = TokenMask(np.array([0]), np.zeros((1, 2), np.int32))
    with pytest.raises(ValueError, match="3 words a row"):
        edited(torch.zeros(1, VOCAB), replace(settings(1), mask=mask))


@hypothesis_settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.01, 3.0, 60.0]),
    wanted=st.lists(st.integers(-1, 20), min_size=1, max_size=5),
)
def test_logprobs_are_those_of_the_raw_logits(seed: int, spread: float, wanted: list[int]) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(0, spread, (len(wanted), VOCAB)) + 100).astype(np.float32)
    tokens = rng.integers(0, VOCAB, len(wanted))
    double = logits.astype(np.float64)
    exact = double - double.max(1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    asked = [i for i, n in enumerate(wanted) if n >= 0]
    if not asked:
        return
    found = sampled_logprobs(
        torch.from_numpy(logits), torch.from_numpy(tokens), np.array(wanted, np.int32), logprobs_of
    ).result()
    assert found.token_ids.tolist() == tokens[asked].tolist()
    np.testing.assert_allclose(found.chosen, exact[asked, tokens[asked]], rtol=1e-5, atol=1e-4)
    most = max(wanted)
    assert found.top_ids.shape == (len(asked), most)
    np.testing.assert_allclose(found.top, -np.sort(-exact[asked])[:, :most], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(
        np.take_along_axis(exact[asked], found.top_ids, 1), found.top, rtol=1e-5, atol=1e-4
    )


def test_more_alternatives_than_tokens() -> None:
    _, _, ids, top = logprobs_of(torch.zeros(1, 3), torch.tensor([2]), 20)
    assert sorted(ids[0].tolist()) == [0, 1, 2]
    np.testing.assert_allclose(np.exp(top[0].double()).sum(), 1, rtol=1e-6)
