"""Gemma 2 and 3, text only."""

import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.config import ModelConfig
from deeproot.engine.layers import OffsetRMSNorm
from deeproot.engine.models.decoder import Attention, Decoder, GatedMLP, LayerMaker, LayerNorms, load_norm
from deeproot.engine.weights import WeightSource


class GemmaLayer:
    """Norms before and after attention, before and after the MLP."""

    def __init__(self, config: ModelConfig, weights: WeightSource, layer: int, attention: Attention) -> None:
        prefix = f"model.layers.{layer}"
        self.attention = attention
        self.mlp = GatedMLP(config, weights, layer)
        self.before_attention, self.after_attention, self.before_mlp, self.after_mlp = (
            load_norm(config, weights, f"{prefix}.{name}", OffsetRMSNorm)
            for name in (
                "input_layernorm",
                "post_attention_layernorm",
                "pre_feedforward_layernorm",
                "post_feedforward_layernorm",
            )
        )

    @property
    def norms(self) -> LayerNorms:
        return LayerNorms(self.before_attention, self.before_mlp, self.after_attention, self.after_mlp)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        x = x + self.after_attention(self.attention(self.before_attention(x), cos, sin, attention))
        return x + self.after_mlp(self.mlp(self.before_mlp(x)))


class _Gemma(Decoder):
    """Embeddings are scaled up by the root of their size."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, device: torch.device, make_layer: LayerMaker
    ) -> None:
        super().__init__(config, weights, device, make_layer, OffsetRMSNorm, config.hidden_size**0.5)


class Gemma2ForCausalLM(_Gemma):
    """Soft caps of scores and logits, a window in every other layer: all in the configuration."""

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None:
        super().__init__(config, weights, device, _gemma2_layer)


class Gemma3ForCausalLM(_Gemma):
    """Norms of the heads of Q and K; layers with a window, which most have, rotate by a base of their own."""

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None:
        super().__init__(config, weights, device, _gemma3_layer)


def _gemma2_layer(config: ModelConfig, weights: WeightSource, layer: int) -> GemmaLayer:
    return GemmaLayer(config, weights, layer, Attention(config, weights, layer))


def _gemma3_layer(config: ModelConfig, weights: WeightSource, layer: int) -> GemmaLayer:
    return GemmaLayer(config, weights, layer, Attention(config, weights, layer, head_norm=OffsetRMSNorm))
