"""Hugging Face's `config.json` to ModelConfig: what all families share, and a small reader for what each has of its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from deeproot.engine.config import SUPPORTED_ARCHITECTURES, Activation, ConfigError, ModelConfig, RopeConfig
from deeproot.engine.config_keys import MAX_HEAD_DIM, MAX_LAYERS, MAX_POSITIONS, Keys
from deeproot.engine.config_quant import read_weight_tile
from deeproot.engine.rope_config import read_rope, rope_keys

_ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_HEAD_DIMS = {"Qwen3ForCausalLM": 128, "Gemma2ForCausalLM": 256, "Gemma3ForCausalLM": 256}
"""Where the default is not `hidden_size / num_attention_heads`."""


def config_from_dict(data: Mapping[str, Any], max_model_len: int | None = None) -> ModelConfig:
    """Read the content of a `config.json`; unknown keys are dropped.

    max_model_len: the longest sequence that will be asked for; matters to rotary scalings that depend on it.
    Raises ConfigError, which names the key that is missing, wrong or not supported.
    """
    keys = Keys(data, "config.json")
    architecture = _architecture(data)
    weight_tile = read_weight_tile(data)
    num_heads = keys.positive_int("num_attention_heads")
    hidden_size = keys.positive_int("hidden_size")
    head_dim = keys.positive_int(
        "head_dim", _HEAD_DIMS.get(architecture, hidden_size // num_heads), maximum=MAX_HEAD_DIM
    )
    max_positions = keys.positive_int("max_position_embeddings", 2048, maximum=MAX_POSITIONS)
    rope, local_rope, longest = _ropes(data, architecture, head_dim, max_positions, max_model_len)
    shared = ModelConfig(
        architecture=architecture,
        vocab_size=keys.positive_int("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=keys.positive_int("intermediate_size"),
        num_layers=keys.positive_int("num_hidden_layers", maximum=MAX_LAYERS),
        num_qo_heads=num_heads,
        num_kv_heads=keys.positive_int("num_key_value_heads", num_heads),
        head_dim=head_dim,
        max_position_embeddings=longest,
        rms_norm_eps=keys.positive_float("rms_norm_eps", 1e-6),
        rope=rope,
        local_rope=local_rope,
        tie_word_embeddings=keys.boolean("tie_word_embeddings", False),
        activation=_activation(keys, "hidden_act", "silu"),
        weight_tile=weight_tile,
    )
    return _FAMILIES[architecture](keys, shared)


def _architecture(data: Mapping[str, Any]) -> str:
    names = data.get("architectures")
    if not isinstance(names, list) or len(names) != 1:
        raise ConfigError(f"config.json: 'architectures' must name one architecture, got {str(names)[:80]}")
    name = str(names[0])
    if name not in _FAMILIES:
        known = ", ".join(SUPPORTED_ARCHITECTURES)
        raise ConfigError(f"config.json: architecture {name!r} is not supported; supported: {known}")
    return name


def _activation(keys: Keys, key: str, default: str) -> Activation:
    name = keys.string(key, default)
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{keys.where}: {key} {name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _ropes(
    data: Mapping[str, Any], architecture: str, head_dim: int, max_positions: int, max_model_len: int | None
) -> tuple[RopeConfig, RopeConfig | None, int]:
    """Of the layers without and with a window, if these differ; and the longest sequence."""
    if architecture != "Gemma3ForCausalLM":
        rope, longest = read_rope(rope_keys(data), head_dim, max_positions, max_model_len)
        return rope, None, longest
    nested = data.get("rope_parameters")
    if isinstance(nested, Mapping) and any(isinstance(value, Mapping) for value in nested.values()):
        whole = rope_keys({"rope_parameters": nested.get("full_attention")}, 1e6)
        local = rope_keys({"rope_parameters": nested.get("sliding_attention")})
    else:
        # Older files give the layers with a window only a base.
        whole, local = rope_keys(data, 1e6), rope_keys({"rope_theta": data.get("rope_local_base_freq")})
    rope, longest = read_rope(whole, head_dim, max_positions, max_model_len)
    local_rope, _ = read_rope(local, head_dim, max_positions, max_model_len)
    return rope, local_rope, longest


def _windows(
    keys: Keys, num_layers: int, window: int | None, is_local: Callable[[int], bool]
) -> tuple[int | None, ...]:
    """Each layer's window: as `layer_types` says, or if that is absent, as `is_local` does."""
    if window is None:
        return ()
    types = keys.data.get("layer_types")
    if types is None:
        types = ["sliding_attention" if is_local(layer) else "full_attention" for layer in range(num_layers)]
    if not isinstance(types, list) or not all(
        kind in ("sliding_attention", "full_attention") for kind in types
    ):
        raise keys.wrong("layer_types", "a list of 'sliding_attention' and 'full_attention'", types)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _llama(keys: Keys, shared: ModelConfig) -> ModelConfig:
    bias = keys.boolean("attention_bias", False)
    return replace(shared, qkv_bias=bias, out_bias=bias, mlp_bias=keys.boolean("mlp_bias", False))


def _mistral(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return _every_layer_windowed(shared, keys.optional_int("sliding_window", absent=4096))


def _phi3(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return _every_layer_windowed(shared, keys.optional_int("sliding_window"))


def _every_layer_windowed(shared: ModelConfig, window: int | None) -> ModelConfig:
    return replace(shared, layer_windows=() if window is None else (window,) * shared.num_layers)


def _qwen2(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return replace(_qwen_windows(keys, shared), qkv_bias=True)


def _qwen3(keys: Keys, shared: ModelConfig) -> ModelConfig:
    bias = keys.boolean("attention_bias", False)
    return replace(_qwen_windows(keys, shared), qkv_bias=bias, out_bias=bias)


def _qwen_windows(keys: Keys, shared: ModelConfig) -> ModelConfig:
    if not keys.boolean("use_sliding_window", False):
        return shared
    first = keys.positive_int("max_window_layers", 28, minimum=0)
    window = keys.optional_int("sliding_window", absent=4096)
    return replace(
        shared, layer_windows=_windows(keys, shared.num_layers, window, lambda layer: layer >= first)
    )


def _gemma2(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return replace(
        _gemma(keys, shared),
        layer_windows=_gemma_windows(keys, shared, every=2),
        attention_soft_cap=keys.optional_float("attn_logit_softcapping", absent=50.0),
        logits_soft_cap=keys.optional_float("final_logit_softcapping", absent=30.0),
    )


def _gemma3(keys: Keys, shared: ModelConfig) -> ModelConfig:
    every = keys.positive_int("sliding_window_pattern", 6)
    if keys.has("attn_logit_softcapping"):
        # Transformers reads the key and caps nothing; no Gemma 3 was trained with a cap.
        raise ConfigError("config.json: 'attn_logit_softcapping' is not supported for Gemma 3; remove it")
    return replace(
        _gemma(keys, shared),
        layer_windows=_gemma_windows(keys, shared, every),
        logits_soft_cap=keys.optional_float("final_logit_softcapping"),
    )


def _gemma_windows(keys: Keys, shared: ModelConfig, every: int) -> tuple[int | None, ...]:
    window = keys.positive_int("sliding_window", 4096)
    return _windows(keys, shared.num_layers, window, lambda layer: (layer + 1) % every != 0)


def _gemma(keys: Keys, shared: ModelConfig) -> ModelConfig:
    if keys.boolean("use_bidirectional_attention", False):
        raise ConfigError("config.json: 'use_bidirectional_attention' is not supported")
    bias = keys.boolean("attention_bias", False)
    return replace(
        shared,
        tie_word_embeddings=keys.boolean("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        activation=_activation(keys, "hidden_activation", "gelu_pytorch_tanh"),
        attention_scale=keys.positive_float("query_pre_attn_scalar", 256) ** -0.5,
    )


_FAMILIES: dict[str, Callable[[Keys, ModelConfig], ModelConfig]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "Phi3ForCausalLM": _phi3,
}
