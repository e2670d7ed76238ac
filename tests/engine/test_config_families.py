"""What each family's configuration says of its own, and what transformers assumes where it says nothing."""

from typing import Any

import pytest
from tests.engine.test_config import LLAMA2

from deeproot.engine.config import ConfigError, RopeConfig
from deeproot.engine.config_hf import config_from_dict


def family(name: str, **changes: Any) -> dict[str, Any]:
    return {**LLAMA2, "architectures": [f"{name}ForCausalLM"], **changes}


def test_mistral() -> None:
    assert config_from_dict(family("Mistral", sliding_window=100)).layer_windows == (100,) * 32
    assert config_from_dict(family("Mistral", sliding_window=None)).layer_windows == ()
    assert config_from_dict(family("Mistral")).layer_windows == (4096,) * 32
    assert config_from_dict(family("Mistral", sliding_window=100)).window(31) == 100
    assert config_from_dict(family("Mistral", sliding_window=None)).window(31) is None


def test_llama_has_no_windows() -> None:
    assert config_from_dict(family("Llama", sliding_window=100)).layer_windows == ()


def test_qwen2() -> None:
    config = config_from_dict(family("Qwen2", sliding_window=100, max_window_layers=30))
    assert (config.qkv_bias, config.out_bias, config.mlp_bias) == (True, False, False)
    assert config.layer_windows == ()
    data = family("Qwen2", sliding_window=100, max_window_layers=30, use_sliding_window=True)
    assert config_from_dict(data).layer_windows == (None,) * 30 + (100, 100)
    assert config_from_dict({**data, "sliding_window": None}).layer_windows == ()


def test_qwen3() -> None:
    config = config_from_dict(family("Qwen3", num_attention_heads=64))
    assert (config.head_dim, config.qkv_bias, config.out_bias) == (128, False, False)
    assert config_from_dict(family("Qwen3", attention_bias=True)).out_bias


def test_gemma2() -> None:
    """With nothing but sizes, transformers' defaults."""
    config = config_from_dict(family("Gemma2"))
    assert (config.attention_soft_cap, config.logits_soft_cap) == (50.0, 30.0)
    assert (config.head_dim, config.attention_scale) == (256, 1 / 16)
    assert (config.tie_word_embeddings, config.activation) == (True, "gelu_tanh")
    assert config.layer_windows == (4096, None) * 16
    uncapped = config_from_dict(family("Gemma2", attn_logit_softcapping=None, final_logit_softcapping=None))
    assert (uncapped.attention_soft_cap, uncapped.logits_soft_cap) == (None, None)
    types = ["full_attention"] * 30 + ["sliding_attention"] * 2
    data = family("Gemma2", layer_types=types, sliding_window=7, query_pre_attn_scalar=144)
    assert config_from_dict(data).layer_windows == (None,) * 30 + (7, 7)
    assert config_from_dict(data).attention_scale == pytest.approx(1 / 12)


def test_gemma3_in_both_spellings() -> None:
    linear = {"rope_type": "linear", "factor": 8.0}
    older = family(
        "Gemma3", rope_theta=1e6, rope_local_base_freq=5e3, rope_scaling=linear, sliding_window_pattern=4
    )
    config = config_from_dict(older)
    assert config.rope == RopeConfig(256, 1e6, "linear", 8.0)
    assert config.local_rope == RopeConfig(256, 5e3)
    assert config.layer_windows == (4096, 4096, 4096, None) * 8
    ropes = {
        "full_attention": {**linear, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    types = (["sliding_attention"] * 3 + ["full_attention"]) * 8
    assert config_from_dict(family("Gemma3", rope_parameters=ropes, layer_types=types)) == config
    plain = config_from_dict(family("Gemma3"))
    assert (plain.rope, plain.local_rope) == (RopeConfig(256, 1e6), RopeConfig(256, 1e4))
    assert plain.layer_windows[:6] == (4096,) * 5 + (None,)


def test_phi3() -> None:
    config = config_from_dict(family("Phi3", partial_rotary_factor=0.75, sliding_window=2047))
    assert (config.rope, config.layer_windows) == (RopeConfig(96, 10000.0), (2047,) * 32)
    assert config_from_dict(family("Phi3")).layer_windows == ()
    longrope = {"type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64}
    data = family("Phi3", rope_scaling=longrope, original_max_position_embeddings=1024)
    assert config_from_dict(data).rope.freq_divisors == (2.0,) * 64
    assert config_from_dict(data, max_model_len=1024).rope.freq_divisors == (1.0,) * 64
    assert config_from_dict(data, max_model_len=1024).max_position_embeddings == 4096


FAMILY_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "window": (family("Mistral", sliding_window=0), "'sliding_window' must be a whole number of at least 1"),
    "layer types": (
        family("Gemma2", layer_types=["chunked_attention"] * 32),
        "'layer_types' must be a list of 'sliding_attention' and 'full_attention'",
    ),
    "number of layer types": (
        family("Gemma2", layer_types=["full_attention"] * 31),
        "31 layers have a kind of attention, the model has 32 layers",
    ),
    "activation": (
        family("Gemma2", hidden_activation="gelu"),
        "hidden_activation 'gelu' is not supported; supported: silu, gelu_pytorch_tanh",
    ),
    "both directions": (
        family("Gemma3", use_bidirectional_attention=True),
        "'use_bidirectional_attention' is not supported",
    ),
    "a cap that transformers ignores": (
        family("Gemma3", attn_logit_softcapping=50.0),
        "'attn_logit_softcapping' is not supported for Gemma 3",
    ),
}


@pytest.mark.parametrize("name", FAMILY_REFUSED)
def test_what_families_refuse(name: str) -> None:
    data, reason = FAMILY_REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        config_from_dict(data)
