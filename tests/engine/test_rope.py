"""Rotary embedding against transformers' tables and against rotation of complex numbers."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from deeproot.engine.config import RopeConfig
from deeproot.engine.rope import RotaryEmbedding, inverse_frequencies, rotate

LLAMA3 = RopeConfig(
    128,
    500000.0,
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
ROPES = [RopeConfig(64, 10000.0), RopeConfig(128, 1e6), RopeConfig(64, 10000.0, "linear", 3.0), LLAMA3]


def hf_frequencies(rope: RopeConfig) -> torch.Tensor:
    parameters = {"rope_type": rope.scaling, "rope_theta": rope.theta}
    if rope.scaling != "default":
        parameters["factor"] = rope.factor
    if rope.scaling == "llama3":
        for key in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"):
            parameters[key] = getattr(rope, key)
    config = LlamaConfig(head_dim=rope.dim, max_position_embeddings=131072, rope_parameters=parameters)
    frequencies: torch.Tensor = LlamaRotaryEmbedding(config).inv_freq
    return frequencies


@pytest.mark.parametrize("rope", ROPES)
def test_frequencies_equal_transformers(rope: RopeConfig) -> None:
    assert torch.allclose(inverse_frequencies(rope).float(), hf_frequencies(rope), rtol=1e-5, atol=0)


def test_llama3_touches_only_long_wavelengths() -> None:
    """A guard for the test above: the three regions are all there."""
    ratio = inverse_frequencies(RopeConfig(128, 500000.0)) / inverse_frequencies(LLAMA3)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(8)
    assert ((ratio > 1.01) & (ratio < 7.9)).any()


def test_divisors_replace_the_scaling() -> None:
    divisors = tuple(np.linspace(1, 8, 32).tolist())
    plain = inverse_frequencies(RopeConfig(64, 10000.0))
    scaled = inverse_frequencies(RopeConfig(64, 10000.0, freq_divisors=divisors))
    assert torch.allclose(scaled * torch.tensor(divisors, dtype=torch.float64), plain)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_rotation_is_that_of_complex_numbers(head_dim: int) -> None:
    """Channel i and its partner half a (rotated) head away are one complex number; far positions keep precision."""
    rope = RopeConfig(64, 10000.0)
    positions = torch.tensor([0, 1, 777, 99999])
    cos, sin = RotaryEmbedding(rope, 100000, torch.device("cpu"))(positions)
    x = torch.randn(4, 3, head_dim, generator=torch.Generator().manual_seed(0))
    numbers = torch.complex(x[..., :32].double(), x[..., 32:64].double())
    angles = torch.outer(positions.double(), 10000.0 ** -(torch.arange(32).double() / 32))
    turned = numbers * torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
    expected = torch.cat((turned.real, turned.imag, x[..., 64:].double()), -1)
    assert torch.allclose(rotate(x, cos, sin).double(), expected, atol=1e-6)


def test_half_precision_is_rotated_in_float32() -> None:
    cos, sin = RotaryEmbedding(RopeConfig(64, 10000.0), 5000, torch.device("cpu"))(torch.tensor([4321]))
    x = torch.randn(1, 2, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = rotate(x, cos, sin)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, rotate(x.float(), cos, sin).bfloat16())
