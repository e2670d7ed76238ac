"""Rotary settings as Hugging Face's `config.json` spells them.

Two kinds of scaling, dynamic and longrope, depend on the length of the sequence. K in the cache is already rotated, so
they are settled once, for the longest sequence that is to be served, and not call by call.
"""

import math
from collections.abc import Mapping
from typing import Any

from deeproot.engine.config import ConfigError, RopeConfig
from deeproot.engine.config_keys import Keys

SUPPORTED_ROPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_MAX_FACTOR = 2.0**20
"""Of a stretch of the context: no sensible one is near it, and no arithmetic overflows below it."""


def rope_keys(data: Mapping[str, Any], default_theta: float = 10000.0) -> Keys:
    """The settings of a model whose layers are alike, whichever of the two spellings they have.

    Older files have `rope_theta` and `partial_rotary_factor` beside `rope_scaling`, newer ones all in
    `rope_parameters`. Raises ConfigError.
    """
    key = "rope_parameters" if data.get("rope_parameters") is not None else "rope_scaling"
    nested = data.get(key)
    if nested is None:
        nested = {}
    if not isinstance(nested, Mapping):
        raise ConfigError(f"config.json: {key!r} must be an object, got {str(nested)[:80]}")
    if any(isinstance(value, Mapping) for value in nested.values()):
        raise ConfigError(
            f"config.json: {key!r} differs between layers, which this architecture does not support"
        )
    outer = {name: data.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    if outer["rope_theta"] is None:
        outer["rope_theta"] = default_theta
    # Transformers gives the outer one priority.
    original = data.get("original_max_position_embeddings")
    first = {} if original is None else {"original_max_position_embeddings": original}
    inner = {name: value for name, value in nested.items() if value is not None}
    return Keys({**outer, **inner, **first}, f"config.json: {key}")


def read_rope(
    keys: Keys, head_dim: int, max_positions: int, max_model_len: int | None = None
) -> tuple[RopeConfig, int]:
    """The settings, and the longest sequence that they allow.

    keys: from `rope_keys`. max_positions: the model's `max_position_embeddings`. max_model_len: the longest sequence
    that will be asked for, if less than the model can do. Raises ConfigError.
    """
    theta = keys.positive_float("rope_theta", 10000.0)
    dim = int(head_dim * keys.positive_float("partial_rotary_factor", 1.0, maximum=1.0))
    kind = keys.string("rope_type", str(keys.data.get("type") or "default"))
    if kind == "default":
        return RopeConfig(dim, theta), max_positions
    if kind == "linear":
        return RopeConfig(
            dim, theta, "linear", keys.positive_float("factor", maximum=_MAX_FACTOR)
        ), max_positions
    if kind == "dynamic":
        return _dynamic(keys, dim, theta, max_positions, max_model_len)
    if kind in ("longrope", "su"):
        return _longrope(keys, dim, theta, max_positions, max_model_len), max_positions
    original = keys.positive_int("original_max_position_embeddings", max_positions)
    if kind == "llama3":
        return _llama3(keys, dim, theta, original), max_positions
    if kind == "yarn":
        rope = _yarn(keys, dim, theta, original)
        return rope, max(max_positions, _length(original * rope.factor))
    known = ", ".join(SUPPORTED_ROPES)
    raise ConfigError(f"config.json: rope type {kind!r} is not supported; supported: {known}")


def _llama3(keys: Keys, dim: int, theta: float, original: int) -> RopeConfig:
    return RopeConfig(
        dim,
        theta,
        "llama3",
        factor=keys.positive_float("factor", maximum=_MAX_FACTOR),
        low_freq_factor=keys.positive_float("low_freq_factor"),
        high_freq_factor=keys.positive_float("high_freq_factor"),
        original_max_position_embeddings=original,
    )


def _dynamic(
    keys: Keys, dim: int, theta: float, max_positions: int, max_model_len: int | None
) -> tuple[RopeConfig, int]:
    """A larger base for sequences over `max_positions`; the longest are stretched by the factor."""
    factor = keys.positive_float("factor", maximum=_MAX_FACTOR)
    if dim <= 2:
        raise ConfigError(f"config.json: rope type 'dynamic' needs a rotary dim over 2, got {dim}")
    longest = max(max_positions, _length(max_positions * factor))
    served = max(min(max_model_len or longest, longest), max_positions)
    growth = factor * served / max_positions - (factor - 1)
    return RopeConfig(dim, theta * growth ** (dim / (dim - 2))), longest


def _longrope(
    keys: Keys, dim: int, theta: float, max_positions: int, max_model_len: int | None
) -> RopeConfig:
    """One divisor a channel: of two lists, the long one if sequences may exceed the original context."""
    original = keys.positive_int("original_max_position_embeddings", max_positions)
    factor = keys.positive_float("factor", max_positions / original, maximum=_MAX_FACTOR)
    default = 1.0
    if factor > 1 and original > 1:
        default = math.sqrt(1 + math.log(factor) / math.log(original))
    served = min(max_model_len or max_positions, max_positions)
    name = "long_factor" if served > original else "short_factor"
    divisors = keys.positive_floats(name)
    if len(divisors) != dim // 2:
        raise keys.wrong(name, f"a list of {dim // 2} numbers", f"{len(divisors)} numbers")
    return RopeConfig(
        dim,
        theta,
        freq_divisors=divisors,
        attention_factor=keys.positive_float("attention_factor", default),
    )


def _yarn(keys: Keys, dim: int, theta: float, original: int) -> RopeConfig:
    factor = keys.positive_float("factor", maximum=_MAX_FACTOR)
    scale, scale_all = keys.optional_float("mscale"), keys.optional_float("mscale_all_dim")
    if scale is not None and scale_all is not None:
        default = _yarn_magnitude(factor, scale) / _yarn_magnitude(factor, scale_all)
    else:
        default = _yarn_magnitude(factor, 1.0)
    return RopeConfig(
        dim,
        theta,
        "yarn",
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=keys.positive_float("attention_factor", default),
        beta_fast=keys.positive_float("beta_fast", 32.0),
        beta_slow=keys.positive_float("beta_slow", 1.0),
        truncate=keys.boolean("truncate", True),
    )


def _length(tokens: float) -> int:
    return min(round(tokens), 2**31 - 1)


def _yarn_magnitude(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
