"""Rotary position embedding: tables made once in float64, applied in float32."""

import math

import torch

from deeproot.engine.config import RopeConfig


def inverse_frequencies(rope: RopeConfig) -> torch.Tensor:
    """Radians per position of each pair of channels, `[dim / 2]` float64."""
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.dim
    freqs = rope.theta**-exponents
    if rope.freq_divisors is not None:
        return freqs / torch.tensor(rope.freq_divisors, dtype=torch.float64)
    if rope.scaling == "linear":
        return freqs / rope.factor
    if rope.scaling == "llama3":
        return _llama3(freqs, rope)
    if rope.scaling == "yarn":
        return _yarn(freqs, rope)
    return freqs


def _llama3(freqs: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Stretch long wavelengths by the factor, keep short ones, and blend in between (Llama 3.1)."""
    turns = rope.original_max_position_embeddings * freqs / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0, 1)
    return freqs * (kept + (1 - kept) / rope.factor)


def _yarn(freqs: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """Keep the first channels, stretch the last by the factor, and blend linearly by channel in between (YaRN)."""

    def channel(turns: float) -> float:
        """Which channel turns that often within the original context."""
        radians = 2 * math.pi * turns / rope.original_max_position_embeddings
        return -rope.dim / 2 * math.log(radians) / math.log(rope.theta)

    low, high = channel(rope.beta_fast), channel(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    if low == high:
        high += 0.001
    stretched = ((torch.arange(len(freqs), dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return freqs * (1 - stretched) + freqs / rope.factor * stretched


class RotaryEmbedding:
    """Cosines and sines of every position up to a maximum, times the configuration's attention factor."""

    def __init__(self, rope: RopeConfig, max_positions: int, device: torch.device) -> None:
        positions = torch.arange(max_positions, dtype=torch.float64)
        angles = torch.outer(positions, inverse_frequencies(rope))
        cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
        # Each [max_positions, dim / 2].
        self.cos, self.sin = cos.to(device, torch.float32), sin.to(device, torch.float32)

    def __call__(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Factors for `rotate`, each `[T, 1, dim]` float32. positions: `[T]` int64."""
        cos, sin = self.cos[positions], self.sin[positions]
        # Each channel's factor for itself, and for its partner half a head away.
        return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn the first `dim` channels of every head; the rest passes. x: `[T, heads, head_dim]`, any float dtype."""
    dim = cos.shape[-1]
    turned = x[..., :dim]
    partner = torch.roll(turned, dim // 2, -1)
    # Products with the float32 factors are float32 whatever x is.
    out = torch.addcmul(turned * cos, partner, sin).to(x.dtype)
    return out if dim == x.shape[-1] else torch.cat((out, x[..., dim:]), -1)
