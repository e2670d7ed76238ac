"""Sampling in the interpreter: against the twin, against its own definition by brute force, and as a distribution."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deeproot.kernels import philox, reference
from deeproot.kernels.sample import sample


def batch(rows: int, **settings_of: Any) -> dict[str, torch.Tensor]:
    """Sampling settings of `rows` rows: plain sampling but for what is given."""
    values = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seeds": 1,
        "positions": 0,
    } | settings_of
    dtypes = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64}
    return {
        name: torch.as_tensor(value, dtype=dtypes.get(name, torch.float32)).expand(rows).contiguous()
        for name, value in values.items()
    }


def test_philox_gives_the_published_numbers() -> None:
    """Known answers of Philox 4x32-10 (Random123's kat_vectors): zero counter and key, all ones, digits of pi."""
    zero = philox.philox(0, (np.array([0], np.uint32), 0, 0, 0))[:, 0]
    assert [int(x) for x in zero] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    full = philox.philox((ones << 32) | ones, (np.array([ones], np.uint32), ones, ones, ones))[:, 0]
    assert [int(x) for x in full] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter = (np.array([0x243F6A88], np.uint32), 0x85A308D3, 0x13198A2E, 0x03707344)
    pi = philox.philox((0x299F31D0 << 32) | 0xA4093822, counter)[:, 0]
    assert [int(x) for x in pi] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    vocabulary=st.sampled_from([5, 100, 1024, 5000]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 4, 50, 100_000]),
    top_p=st.sampled_from([1.0, 0.9, 0.31, 1e-6]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_sample_equals_its_twin(
    vocabulary: int,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    position: int,
    dtype: torch.dtype,
) -> None:
    logits = (torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)
    settings_of = batch(
        1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seeds=seed, positions=position
    )
    assert sample(logits, **settings_of).tolist() == reference.sample(logits, **settings_of).tolist()


def allowed(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> set[int]:
    """The tokens that may come out, from the definition: sort, keep the first k, then the shortest run over p."""
    order = torch.argsort(logits.double(), descending=True).tolist()
    if top_k:
        order = order[:top_k]
    weight = torch.softmax(logits.double()[order], 0)
    before = weight.cumsum(0) - weight
    order = [token for token, mass in zip(order, before.tolist(), strict=True) if mass < top_p]
    probability = torch.softmax(logits.double(), 0)
    return {token for token in order if probability[token] >= min_p * probability.max()}


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.3), (6, 0.8, 0.1)]
)
def test_only_allowed_tokens_come_out_and_all_of_them_do(top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(3))
    rows = 48
    got = sample(
        logits.expand(rows, -1),
        **batch(rows, top_k=top_k, top_p=top_p, min_p=min_p, positions=torch.arange(rows)),
    )
    assert set(got.tolist()) == allowed(logits[0], top_k, top_p, min_p)


def test_draws_follow_the_softmax() -> None:
    """Chi-squared of 1,500 draws over 6 tokens, 5 degrees of freedom: over 25.7 has a chance of one in ten thousand."""
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5, 2.0, -0.3]])
    draws = 1500
    drawn = torch.cat(
        [
            torch.argmax(logits[0] / 0.7 + philox.gumbel(9, position, 6)).unsqueeze(0)
            for position in range(draws - 100)
        ]
        + [
            sample(
                logits.expand(100, -1),
                **batch(100, temperature=0.7, seeds=9, positions=torch.arange(draws - 100, draws)),
            )
        ]
    )
    expected = torch.softmax(logits[0] / 0.7, 0) * draws
    assert float(((torch.bincount(drawn, minlength=6) - expected).square() / expected).sum()) < 25.7


def test_a_draw_does_not_depend_on_the_batch() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(1))
    seeds, positions = torch.tensor([5, 5, 9, 5]), torch.tensor([3, 4, 3, 3])
    together = sample(logits, **batch(4, seeds=seeds, positions=positions, top_p=0.95))
    for row in range(4):
        alone = sample(
            logits[row : row + 1], **batch(1, seeds=seeds[row], positions=positions[row], top_p=0.95)
        )
        assert alone.item() == together[row].item()
    same = sample(
        logits[:1].expand(3, -1), **batch(3, seeds=torch.tensor([5, 5, 9]), positions=torch.tensor([3, 4, 3]))
    )
    many = [sample(logits[:1], **batch(1, seeds=5, positions=p)).item() for p in range(8)]
    assert len({*same.tolist(), *many}) > 1


def test_greedy_takes_the_lowest_of_equals_and_never_a_forbidden_token() -> None:
    logits = torch.full((2, 3000), -float("inf"))
    logits[0, [700, 2999, 40]] = 2.5
    logits[1, 2500] = -1e30
    assert sample(logits, **batch(2, temperature=0.0)).tolist() == [40, 2500]
    assert sample(logits, **batch(2, top_k=50, top_p=0.5)).tolist()[1] == 2500


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ValueError, match=r"top_k must be \[1\] torch.int32"):
        sample(torch.zeros(1, 4), **(batch(1) | {"top_k": torch.zeros(1)}))
