"""A request's edits, kept token by token, against transformers and the definitions."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.batches import settings as sampling_batch
from transformers import RepetitionPenaltyLogitsProcessor

from deeproot.engine.batch import LogitEdits
from deeproot.engine.logit_edits import edited
from deeproot.scheduler.messages import SamplingParams
from deeproot.scheduler.row_edits import RowEdits, joined

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=12)


def by_definition(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]
) -> np.ndarray:
    """`[VOCAB]` float64."""
    values = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        values[token] += bias
    if len(output) < params.min_tokens:
        values[list(params.stop_token_ids)] = -np.inf
    if prompt + output:
        processor = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)
        values = processor(torch.tensor([prompt + output]), torch.from_numpy(values[None]))[0].numpy()
    counts = np.bincount(output, minlength=len(logits))
    return values - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


def applied(edits: list[LogitEdits], logits: np.ndarray) -> np.ndarray:
    rows = np.repeat(logits[None], len(edits), 0)
    batch = sampling_batch(len(edits))
    together = joined(edits, range(len(edits)))
    fields = {
        name: getattr(batch, name)
        for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    }
    return edited(torch.from_numpy(rows), batch.__class__(**fields, edits=together)).numpy()


@settings(max_examples=200, deadline=None)
@given(
    prompt=tokens,
    before=tokens,
    output=tokens,
    draft=tokens,
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=16), max_size=4),
    penalties=st.tuples(
        st.sampled_from([1.0, 0.5, 1.3]), st.sampled_from([0.0, 0.5, -2.0]), st.sampled_from([0.0, 1.5, -1.0])
    ),
    min_tokens=st.integers(0, 20),
    ends=st.lists(st.integers(0, VOCAB - 1), unique=True, max_size=3),
    seed=st.integers(0, 99),
)
def test_edits_follow_the_output(
    prompt: list[int],
    before: list[int],
    output: list[int],
    draft: list[int],
    bias: dict[int, float],
    penalties: tuple[float, float, float],
    min_tokens: int,
    ends: list[int],
    seed: int,
) -> None:
    """`before`: output before a preemption. Behind a draft, edits are those of an output that has it."""
    repetition, frequency, presence = penalties
    params = SamplingParams(
        max_tokens=99,
        seed=0,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        logit_bias=bias,
        min_tokens=min_tokens,
        stop_token_ids=tuple(ends),
    )
    logits = np.random.default_rng(seed).normal(0, 3, VOCAB).astype(np.float32)
    row = RowEdits(params, np.array(prompt + before, np.int32), len(prompt))
    for token in output:
        row.at_each(draft)
        row.push(token)
    found = applied(row.at_each(draft), logits)
    for ahead in range(len(draft) + 1):
        wanted = by_definition(logits, params, prompt, before + output + draft[:ahead])
        np.testing.assert_allclose(found[ahead], wanted, rtol=1e-5, atol=1e-4)


def test_many_tokens_grow_the_arrays() -> None:
    params = SamplingParams(max_tokens=99, seed=0, repetition_penalty=2.0)
    row = RowEdits(params, np.arange(5000, dtype=np.int32), 5000)
    for token in range(4000, 9000):
        row.push(token)
    (edits,) = row.at_each([])
    assert sorted(edits.token_ids.tolist()) == list(range(9000))
    assert (edits.repetition == 2.0).all()
