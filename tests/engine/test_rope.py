"""Rotary embedding against transformers' tables and against rotation of complex numbers."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from deeproot.engine.config import RopeConfig
from deeproot.engine.rope import RotaryEmbedding, inverse_frequencies, rotate
from deeproot.engine.rope_config import read_rope, rope_keys

LLAMA3 = RopeConfig(
    128,
    500000.0,
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=8192,
)
CPU = torch.device("cpu")
MAX_POSITIONS = 32768
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096,
    "short_factor": np.linspace(1, 2, 64).tolist(),
    "long_factor": np.linspace(1, 40, 64).tolist(),
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "large base": {"rope_type": "default", "rope_theta": 1e6},
    "part of a head": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": YARN,
    "yarn, original": {**YARN, "original_max_position_embeddings": 4096},
    "yarn, betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn, not truncated": {**YARN, "truncate": False},
    "yarn, part of a head": {**YARN, "partial_rotary_factor": 0.5},
    "yarn, magnitude": {**YARN, "attention_factor": 1.25},
    "yarn, magnitudes": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": LONGROPE,
    "longrope, factor": {**LONGROPE, "factor": 16.0},
    "longrope, magnitude": {**LONGROPE, "attention_factor": 1.25},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
}


def hf_rope(parameters: dict[str, Any], seq_len: int) -> tuple[torch.Tensor, float]:
    """Frequencies and magnitude by transformers' own functions, for a call of that length."""
    config = LlamaConfig(
        head_dim=128, max_position_embeddings=MAX_POSITIONS, rope_parameters=copy.deepcopy(parameters)
    )
    if parameters["rope_type"] == "default":
        # Llama's ignores the part of a head.
        return Phi3RotaryEmbedding.compute_default_rope_parameters(config)
    frequencies, magnitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, CPU, seq_len=seq_len)
    return frequencies, float(magnitude)


def read(
    parameters: dict[str, Any], max_model_len: int | None = None, max_positions: int = MAX_POSITIONS
) -> tuple[RopeConfig, int]:
    return read_rope(rope_keys({"rope_parameters": parameters}), 128, max_positions, max_model_len)


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("max_model_len", [None, 4096, 100])
def test_frequencies_equal_transformers_for_the_longest_sequence(
    name: str, max_model_len: int | None
) -> None:
    rope, longest = read(ROPES[name], max_model_len)
    frequencies, magnitude = hf_rope(ROPES[name], max_model_len or longest)
    assert torch.allclose(inverse_frequencies(rope).float(), frequencies, rtol=2e-5, atol=0)
    assert rope.attention_factor == pytest.approx(magnitude)


def test_the_longest_sequence() -> None:
    assert read(ROPES["yarn"])[1] == 4 * MAX_POSITIONS
    assert read(ROPES["yarn, original"])[1] == MAX_POSITIONS
    assert read(ROPES["dynamic"])[1] == 4 * MAX_POSITIONS
    assert {read(ROPES[name])[1] for name in ("default", "linear", "llama3", "longrope")} == {MAX_POSITIONS}


def test_yarn_by_its_formula() -> None:
    """Channels that turn over 32 times in the original context are kept, those under once are stretched."""
    rope, _ = read(ROPES["yarn, not truncated"])
    ratio = inverse_frequencies(RopeConfig(128, 1e6)) / inverse_frequencies(rope)
    turns = MAX_POSITIONS * 1e6 ** -(torch.arange(64, dtype=torch.float64) / 64) / (2 * math.pi)
    blended = (turns.log() - math.log(32)) / (math.log(1) - math.log(32))
    expected = 1 / (1 - blended.clamp(0, 1) * (1 - 1 / 4))
    assert torch.allclose(ratio, expected, rtol=1e-9)
    assert (ratio[0], ratio[-1]) == (1, pytest.approx(4))
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)


def test_longrope_by_its_formula() -> None:
    plain = inverse_frequencies(RopeConfig(128, 10000.0))
    for max_model_len, name in ((None, "long_factor"), (4097, "long_factor"), (4096, "short_factor")):
        rope, _ = read(LONGROPE, max_model_len)
        ratio = plain / inverse_frequencies(rope)
        assert torch.allclose(ratio, torch.tensor(LONGROPE[name], dtype=torch.float64))
        assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(8) / math.log(4096)))


def test_dynamic_by_its_formula() -> None:
    """No scaling while no sequence is longer than the original context; a base for the longest one beyond."""
    dynamic = ROPES["dynamic"]
    assert read(dynamic, MAX_POSITIONS)[0] == RopeConfig(128, 10000.0)
    assert read(dynamic, 2 * MAX_POSITIONS)[0].theta == pytest.approx(10000.0 * 5 ** (128 / 126))
    assert read(dynamic)[0].theta == pytest.approx(10000.0 * 13 ** (128 / 126))
    assert read(dynamic, 10**9)[0] == read(dynamic)[0]


def test_cosines_and_sines_have_the_magnitude() -> None:
    rope, _ = read(LONGROPE)
    cos, sin = RotaryEmbedding(rope, 50, CPU)(torch.tensor([0, 49]))
    assert torch.allclose(cos.square() + sin.square(), torch.tensor(rope.attention_factor**2))


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
