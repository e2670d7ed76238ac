"""What a model is, in numbers. `config_hf` and `config_gguf` read it from files."""

from dataclasses import dataclass
from typing import Literal

import torch

from deeproot.engine.kv_pool import KVLayout

SUPPORTED_ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
)
Activation = Literal["silu", "gelu_tanh"]


class ConfigError(ValueError):
    """A model's configuration is incomplete, contradictory or not supported. The message names the key."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: how fast each pair of channels turns with the position.

    Nothing here depends on a sequence's length. Scalings that do (dynamic, longrope) are settled when a configuration
    is read, since K in the cache is already rotated and must stay valid while its sequence grows.
    """

    dim: int
    """Channels of a head that are rotated, even."""
    theta: float
    scaling: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    """Stretch of the context."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths over `original_max_position_embeddings / low_freq_factor` are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths under `original_max_position_embeddings / high_freq_factor` are kept."""
    original_max_position_embeddings: int = 0
    """llama3, yarn: context length before the stretch."""
    freq_divisors: tuple[float, ...] | None = None
    """`[dim / 2]` divisors of the frequencies, as longrope and GGUF files have them; replaces `scaling`."""
    attention_factor: float = 1.0
    """What cosines and sines are multiplied by (yarn, longrope)."""
    beta_fast: float = 32.0
    """yarn: channels that turn more often than this within the original context are kept."""
    beta_slow: float = 1.0
    """yarn: channels that turn less often than this within the original context are stretched in full."""
    truncate: bool = True
    """yarn: round the bounds between kept and stretched channels outwards to whole channels."""


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
    qkv_bias: bool = False
    out_bias: bool = False
    """Of the projection after attention."""
    mlp_bias: bool = False
    activation: Activation = "silu"
    attention_scale: float | None = None
    """What scores are multiplied by; None is `head_dim ** -0.5`."""
    attention_soft_cap: float | None = None
    """Scores become `cap * tanh(score / cap)`."""
    logits_soft_cap: float | None = None
    layer_windows: tuple[int | None, ...] = ()
    """`[num_layers]` how many of the last tokens, itself included, a token of that layer attends to; None is all.
    Empty: all, in every layer."""
    local_rope: RopeConfig | None = None
    """Of the layers with a window; None: they have `rope` too."""
    weight_tile: tuple[int, int] | None = None
    """Rows and columns that share a scale where the checkpoint's linear weights are e4m3; None: they are not."""

    def __post_init__(self) -> None:
        if self.architecture not in SUPPORTED_ARCHITECTURES:
            known = ", ".join(SUPPORTED_ARCHITECTURES)
            raise ConfigError(f"architecture {self.architecture!r} is not supported; supported: {known}")
        if self.num_qo_heads % self.num_kv_heads:
            raise ConfigError(
                f"the number of attention heads ({self.num_qo_heads}) is not a multiple of the number of "
                f"key-value heads ({self.num_kv_heads})"
            )
        if self.layer_windows and len(self.layer_windows) != self.num_layers:
            raise ConfigError(
                f"{len(self.layer_windows)} layers have a kind of attention, the model has {self.num_layers} layers"
            )
        for rope in (self.rope, self.local_rope):
            if rope is not None:
                _check_rope(rope, self.head_dim)

    def window(self, layer: int) -> int | None:
        """How many of the last tokens the layer attends to; None is all."""
        return self.layer_windows[layer] if self.layer_windows else None

    def kv_layout(self, page_size: int, dtype: torch.dtype) -> KVLayout:
        """The pool layout that this model's K and V need."""
        return KVLayout(self.num_layers, self.num_kv_heads, self.head_dim, page_size, dtype)


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    if rope.dim % 2 or not 0 < rope.dim <= head_dim:
        raise ConfigError(f"rotary dim {rope.dim} must be even and at most head_dim {head_dim}")
    if not 0 < rope.low_freq_factor < rope.high_freq_factor:
        raise ConfigError("rope: 'low_freq_factor' must be over 0 and under 'high_freq_factor'")
    if not 0 < rope.beta_slow <= rope.beta_fast:
        raise ConfigError("rope: 'beta_slow' must be over 0 and at most 'beta_fast'")
    if rope.scaling == "yarn" and rope.theta <= 1:
        raise ConfigError("rope: 'rope_theta' must be over 1 for yarn")
    divisors = rope.freq_divisors
    if divisors is not None and len(divisors) != rope.dim // 2:
        raise ConfigError(f"rotary dim {rope.dim} needs {rope.dim // 2} divisors, got {len(divisors)}")
