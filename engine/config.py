"""What a model is, in numbers: read from a Hugging Face `config.json` or from the metadata of a GGUF file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from deeproot.engine.gguf import GGUFFile
from deeproot.engine.kv_pool import KVLayout

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
_GGUF_ARCHITECTURES = {"llama": "LlamaForCausalLM"}


class ConfigError(ValueError):
    """A model's configuration is incomplete, contradictory or not supported. The message names the key."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: how fast each pair of channels turns with the position."""

    dim: int
    """Channels of a head that are rotated, even."""
    theta: float
    scaling: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    """Stretch of the context (linear, llama3)."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths over `original_max_position_embeddings / low_freq_factor` are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths under `original_max_position_embeddings / high_freq_factor` are kept."""
    original_max_position_embeddings: int = 0
    """llama3: context length before the stretch."""
    freq_divisors: tuple[float, ...] | None = None
    """`[dim / 2]` divisors of the frequencies, as GGUF files store a llama3 scaling; replaces `scaling`."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer."""

    architecture: str
    """Class name in Hugging Face's `architectures`, one of SUPPORTED_ARCHITECTURES."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest sequence, in tokens."""
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    def __post_init__(self) -> None:
        if self.architecture not in SUPPORTED_ARCHITECTURES:
            known = ", ".join(SUPPORTED_ARCHITECTURES)
            raise ConfigError(f"architecture {self.architecture!r} is not supported; supported: {known}")
        if self.num_qo_heads % self.num_kv_heads:
            raise ConfigError(
                f"the number of attention heads ({self.num_qo_heads}) is not a multiple of the number of "
                f"key-value heads ({self.num_kv_heads})"
            )
        if self.rope.dim % 2 or self.rope.dim > self.head_dim:
            raise ConfigError(f"rotary dim {self.rope.dim} must be even and at most head_dim {self.head_dim}")
        if not 0 < self.rope.low_freq_factor < self.rope.high_freq_factor:
            raise ConfigError("rope: 'low_freq_factor' must be over 0 and under 'high_freq_factor'")
        divisors = self.rope.freq_divisors
        if divisors is not None and len(divisors) != self.rope.dim // 2:
            raise ConfigError(
                f"rotary dim {self.rope.dim} needs {self.rope.dim // 2} divisors, got {len(divisors)}"
            )

    def kv_layout(self, page_size: int, dtype: torch.dtype) -> KVLayout:
        """The pool layout that this model's K and V need."""
        return KVLayout(self.num_layers, self.num_kv_heads, self.head_dim, page_size, dtype)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Read the content of a `config.json`; unknown keys are dropped.

        Raises ConfigError, which names the key that is missing, wrong or not supported.
        """
        keys = _Keys(data, "config.json")
        architectures = data.get("architectures")
        if not isinstance(architectures, list) or len(architectures) != 1:
            raise ConfigError(
                f"config.json: 'architectures' must name one architecture, got {architectures!r}"
            )
        _refuse_unsupported(data)
        num_heads = keys.positive_int("num_attention_heads")
        hidden_size = keys.positive_int("hidden_size")
        head_dim = keys.positive_int("head_dim", hidden_size // num_heads)
        max_positions = keys.positive_int("max_position_embeddings", 2048)
        return cls(
            architecture=str(architectures[0]),
            vocab_size=keys.positive_int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=keys.positive_int("intermediate_size"),
            num_layers=keys.positive_int("num_hidden_layers"),
            num_qo_heads=num_heads,
            num_kv_heads=keys.positive_int("num_key_value_heads", num_heads),
            head_dim=head_dim,
            max_position_embeddings=max_positions,
            rms_norm_eps=keys.positive_float("rms_norm_eps", 1e-6),
            rope=_rope_from_dict(data, head_dim, max_positions),
            tie_word_embeddings=keys.boolean("tie_word_embeddings", False),
            attention_bias=keys.boolean("attention_bias", False),
            mlp_bias=keys.boolean("mlp_bias", False),
        )

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "ModelConfig":
        """Read the metadata of a GGUF file; whether embeddings are tied is told by its list of tensors.

        Raises ConfigError, which names the key that is missing, wrong or not supported.
        """
        keys = _Keys(file.metadata, "GGUF metadata")
        arch = keys.string("general.architecture")
        if arch not in _GGUF_ARCHITECTURES:
            known = ", ".join(_GGUF_ARCHITECTURES)
            raise ConfigError(
                f"GGUF metadata: general.architecture {arch!r} is not supported; supported: {known}"
            )
        _refuse_unsupported_gguf(keys, arch)
        num_heads = keys.positive_int(f"{arch}.attention.head_count")
        hidden_size = keys.positive_int(f"{arch}.embedding_length")
        head_dim = keys.positive_int(f"{arch}.attention.key_length", hidden_size // num_heads)
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        num_tokens = len(tokens) if isinstance(tokens, list) and tokens else None
        return cls(
            architecture=_GGUF_ARCHITECTURES[arch],
            vocab_size=keys.positive_int(f"{arch}.vocab_size", num_tokens),
            hidden_size=hidden_size,
            intermediate_size=keys.positive_int(f"{arch}.feed_forward_length"),
            num_layers=keys.positive_int(f"{arch}.block_count"),
            num_qo_heads=num_heads,
            num_kv_heads=keys.positive_int(f"{arch}.attention.head_count_kv", num_heads),
            head_dim=head_dim,
            max_position_embeddings=keys.positive_int(f"{arch}.context_length"),
            rms_norm_eps=keys.positive_float(f"{arch}.attention.layer_norm_rms_epsilon"),
            rope=_rope_from_gguf(file, keys, arch, head_dim),
            tie_word_embeddings="output.weight" not in file.tensors,
            attention_bias="blk.0.attn_q.bias" in file.tensors,
            mlp_bias="blk.0.ffn_up.bias" in file.tensors,
        )


class _Keys:
    """Typed look-ups in a mapping from outside. A key that is absent or null takes the default, if there is one."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = data
        self._where = where

    def _get(self, key: str, default: Any) -> Any:
        value = self._data.get(key)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self._where}: {key!r} is missing")
        return default

    def _wrong(self, key: str, wanted: str, value: Any) -> ConfigError:
        return ConfigError(f"{self._where}: {key!r} must be {wanted}, got {str(value)[:80]!r}")

    def positive_int(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self._get(key, default)
        if type(value) is not int or not minimum <= value < 2**31:
            raise self._wrong(key, f"a whole number of at least {minimum}", value)
        return value

    def positive_float(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
            raise self._wrong(key, "a number over 0", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self._wrong(key, "true or false", value)
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if type(value) is not str:
            raise self._wrong(key, "a string", value)
        return value


def _refuse_unsupported(data: Mapping[str, Any]) -> None:
    quantization = data.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else quantization
        raise ConfigError(
            f"config.json: quantization_config with quant_method {method!r} is not supported; "
            "use the unquantised model or a GGUF file of it"
        )
    activation = data.get("hidden_act", "silu")
    if activation != "silu":
        raise ConfigError(f"config.json: hidden_act {activation!r} is not supported; supported: silu")


def _refuse_unsupported_gguf(keys: _Keys, arch: str) -> None:
    if keys.positive_int(f"{arch}.expert_count", 0, minimum=0):
        raise ConfigError(f"GGUF metadata: {arch}.expert_count: mixtures of experts are not supported")
    parts = keys.positive_int("split.count", 1, minimum=0)
    if parts > 1:
        raise ConfigError(
            f"GGUF metadata: split.count: the file is one of {parts} parts, which are not read together; "
            "merge them by llama.cpp's llama-gguf-split"
        )


def _rope_from_dict(data: Mapping[str, Any], head_dim: int, max_positions: int) -> RopeConfig:
    """Both spellings: `rope_theta` beside `rope_scaling`, and the newer `rope_parameters` that holds all."""
    key = "rope_parameters" if data.get("rope_parameters") is not None else "rope_scaling"
    nested = data.get(key)
    if nested is None:
        nested = {}
    if not isinstance(nested, Mapping):
        raise ConfigError(f"config.json: {key!r} must be an object, got {nested!r}")
    rope = _Keys({"rope_theta": data.get("rope_theta"), **nested}, f"config.json: {key}")
    theta = rope.positive_float("rope_theta", 10000.0)
    scaling = rope.string("rope_type", str(nested.get("type") or "default"))
    if scaling == "default":
        return RopeConfig(head_dim, theta)
    if scaling == "linear":
        return RopeConfig(head_dim, theta, "linear", rope.positive_float("factor"))
    if scaling == "llama3":
        return RopeConfig(
            head_dim,
            theta,
            "llama3",
            factor=rope.positive_float("factor"),
            low_freq_factor=rope.positive_float("low_freq_factor"),
            high_freq_factor=rope.positive_float("high_freq_factor"),
            original_max_position_embeddings=rope.positive_int(
                "original_max_position_embeddings", max_positions
            ),
        )
    raise ConfigError(
        f"config.json: rope type {scaling!r} is not supported; supported: default, linear, llama3"
    )


def _rope_from_gguf(file: GGUFFile, keys: _Keys, arch: str, head_dim: int) -> RopeConfig:
    dim = keys.positive_int(f"{arch}.rope.dimension_count", head_dim)
    theta = keys.positive_float(f"{arch}.rope.freq_base", 10000.0)
    divisors = None
    if "rope_freqs.weight" in file.tensors:
        divisors = tuple(file.read("rope_freqs.weight").ravel().tolist())
    scaling = keys.string(f"{arch}.rope.scaling.type", "none")
    if scaling == "none":
        return RopeConfig(dim, theta, freq_divisors=divisors)
    if scaling == "linear":
        return RopeConfig(
            dim, theta, "linear", keys.positive_float(f"{arch}.rope.scaling.factor"), freq_divisors=divisors
        )
    raise ConfigError(
        f"GGUF metadata: {arch}.rope.scaling.type {scaling!r} is not supported; supported: none, linear"
    )
