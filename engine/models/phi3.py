"""Phi-3, 3.5 and 4, the dense ones."""

import torch

from deeproot.engine.config import ModelConfig
from deeproot.engine.models.decoder import Attention, Decoder, GatedMLP, PreNormLayer
from deeproot.engine.weights import WeightSource


class Phi3ForCausalLM(Decoder):
    """Q, K and V are stored as one tensor, gate and up as another."""

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None:
        super().__init__(config, weights, device, _make_layer)


def _make_layer(config: ModelConfig, weights: WeightSource, layer: int) -> PreNormLayer:
    attention = Attention(config, weights, layer, fused=True)
    return PreNormLayer(config, weights, layer, attention, GatedMLP(config, weights, layer, fused=True))
