"""Qwen 3, the dense ones."""

import torch

from deeproot.engine.config import ModelConfig
from deeproot.engine.layers import RMSNorm
from deeproot.engine.models.decoder import Attention, Decoder, GatedMLP, PreNormLayer
from deeproot.engine.weights import WeightSource


class Qwen3ForCausalLM(Decoder):
    """A norm of each head of Q and K."""

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None:
        super().__init__(config, weights, device, _make_layer)


def _make_layer(config: ModelConfig, weights: WeightSource, layer: int) -> PreNormLayer:
    attention = Attention(config, weights, layer, head_norm=RMSNorm)
    return PreNormLayer(config, weights, layer, attention, GatedMLP(config, weights, layer))
