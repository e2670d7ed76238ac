"""The metadata of a GGUF file to ModelConfig.

Some constants are not in the file: llama.cpp has them in its code, by architecture and size, and so has this module.
"""

from collections.abc import Callable
from dataclasses import replace

from deeproot.engine.config import ConfigError, ModelConfig, RopeConfig
from deeproot.engine.config_keys import MAX_HEAD_DIM, MAX_LAYERS, MAX_POSITIONS, Keys
from deeproot.engine.gguf import GGUFFile

_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
"""Their scores are scaled by hidden size and heads, those of the smaller ones by head_dim."""


def config_from_gguf(file: GGUFFile, max_model_len: int | None = None) -> ModelConfig:
    """Read a file's metadata; its list of tensors tells whether embeddings are tied and what has biases.

    max_model_len: the longest sequence that will be asked for; matters to longrope.
    Raises ConfigError, which names the key that is missing, wrong or not supported.
    """
    keys = Keys(file.metadata, "GGUF metadata")
    arch = keys.string("general.architecture")
    if arch not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ConfigError(
            f"GGUF metadata: general.architecture {arch!r} is not supported; supported: {known}"
        )
    architecture, adapt = _FAMILIES[arch]
    _refuse_unsupported(keys, arch)
    num_heads = keys.positive_int(f"{arch}.attention.head_count")
    hidden_size = keys.positive_int(f"{arch}.embedding_length")
    head_dim = keys.positive_int(
        f"{arch}.attention.key_length", hidden_size // num_heads, maximum=MAX_HEAD_DIM
    )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    num_tokens = len(tokens) if isinstance(tokens, list) and tokens else None
    shared = ModelConfig(
        architecture=architecture,
        vocab_size=keys.positive_int(f"{arch}.vocab_size", num_tokens),
        hidden_size=hidden_size,
        intermediate_size=keys.positive_int(f"{arch}.feed_forward_length"),
        num_layers=keys.positive_int(f"{arch}.block_count", maximum=MAX_LAYERS),
        num_qo_heads=num_heads,
        num_kv_heads=keys.positive_int(f"{arch}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=keys.positive_int(f"{arch}.context_length", maximum=MAX_POSITIONS),
        rms_norm_eps=keys.positive_float(f"{arch}.attention.layer_norm_rms_epsilon"),
        rope=_rope(file, keys, arch, head_dim, max_model_len),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_up.bias" in file.tensors,
    )
    return adapt(keys, shared)


def _refuse_unsupported(keys: Keys, arch: str) -> None:
    if keys.positive_int(f"{arch}.expert_count", 0, minimum=0):
        raise ConfigError(f"GGUF metadata: {arch}.expert_count: mixtures of experts are not supported")
    parts = keys.positive_int("split.count", 1, minimum=0)
    if parts > 1:
        raise ConfigError(
            f"GGUF metadata: split.count: the file is one of {parts} parts, which are not read together; "
            "merge them by llama.cpp's llama-gguf-split"
        )


def _rope(file: GGUFFile, keys: Keys, arch: str, head_dim: int, max_model_len: int | None) -> RopeConfig:
    dim = keys.positive_int(f"{arch}.rope.dimension_count", head_dim)
    theta = keys.positive_float(f"{arch}.rope.freq_base", 10000.0)
    scaling = keys.string(f"{arch}.rope.scaling.type", "none")
    if "rope_factors_long.weight" in file.tensors and scaling in ("none", "longrope"):
        return _longrope(file, keys, arch, RopeConfig(dim, theta), max_model_len)
    divisors = _floats(file, "rope_freqs.weight") if "rope_freqs.weight" in file.tensors else None
    if scaling == "none":
        return RopeConfig(dim, theta, freq_divisors=divisors)
    if scaling == "linear":
        factor = keys.positive_float(f"{arch}.rope.scaling.factor")
        return RopeConfig(dim, theta, "linear", factor, freq_divisors=divisors)
    raise ConfigError(
        f"GGUF metadata: {arch}.rope.scaling.type {scaling!r} is not supported; supported: none, linear, longrope"
    )


def _longrope(
    file: GGUFFile, keys: Keys, arch: str, plain: RopeConfig, max_model_len: int | None
) -> RopeConfig:
    """See `rope_config`: one of two lists of divisors, by the longest sequence to be served."""
    longest = keys.positive_int(f"{arch}.context_length", maximum=MAX_POSITIONS)
    original = keys.positive_int(f"{arch}.rope.scaling.original_context_length", longest)
    name = "long" if min(max_model_len or longest, longest) > original else "short"
    if f"rope_factors_{name}.weight" not in file.tensors:
        raise ConfigError(f"GGUF file: tensor 'rope_factors_{name}.weight' is missing")
    return replace(
        plain,
        freq_divisors=_floats(file, f"rope_factors_{name}.weight"),
        attention_factor=keys.positive_float(f"{arch}.rope.scaling.attn_factor", 1.0),
    )


def _floats(file: GGUFFile, tensor: str) -> tuple[float, ...]:
    return tuple(file.read(tensor).ravel().tolist())


def _plain(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return shared


def _phi3(keys: Keys, shared: ModelConfig) -> ModelConfig:
    # llama.cpp's converter writes 0 for "none".
    window = keys.positive_int("phi3.attention.sliding_window", 0, minimum=0)
    return replace(shared, layer_windows=(window,) * shared.num_layers if window else ())


def _gemma2(keys: Keys, shared: ModelConfig) -> ModelConfig:
    return replace(
        _gemma(keys, shared, "gemma2", every=2),
        attention_soft_cap=keys.positive_float("gemma2.attn_logit_softcapping", 50.0),
        logits_soft_cap=keys.positive_float("gemma2.final_logit_softcapping", 30.0),
    )


def _gemma3(keys: Keys, shared: ModelConfig) -> ModelConfig:
    every = keys.positive_int("gemma3.attention.sliding_window_pattern", 6)
    theta = keys.positive_float("gemma3.rope.freq_base_swa", 10000.0)
    return replace(_gemma(keys, shared, "gemma3", every), local_rope=RopeConfig(shared.rope.dim, theta))


def _gemma(keys: Keys, shared: ModelConfig, arch: str, every: int) -> ModelConfig:
    window = keys.positive_int(f"{arch}.attention.sliding_window", 4096)
    num_layers = shared.num_layers
    by_hidden = num_layers == _GEMMA_27B_LAYERS[arch]
    return replace(
        shared,
        activation="gelu_tanh",
        attention_scale=(shared.hidden_size / shared.num_qo_heads if by_hidden else shared.head_dim) ** -0.5,
        layer_windows=tuple(window if (layer + 1) % every else None for layer in range(num_layers)),
    )


_FAMILIES: dict[str, tuple[str, Callable[[Keys, ModelConfig], ModelConfig]]] = {
    "llama": ("LlamaForCausalLM", _plain),
    "qwen2": ("Qwen2ForCausalLM", _plain),
    "qwen3": ("Qwen3ForCausalLM", _plain),
    "gemma2": ("Gemma2ForCausalLM", _gemma2),
    "gemma3": ("Gemma3ForCausalLM", _gemma3),
    "phi3": ("Phi3ForCausalLM", _phi3),
}
