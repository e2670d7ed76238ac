"""Llama 2 and 3, TinyLlama, SmolLM and whatever else calls itself LlamaForCausalLM."""

import torch
import torch.nn.functional as F

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.config import ModelConfig
from deeproot.engine.layers import Embedding, Linear, RMSNorm, silu_mul
from deeproot.engine.rope import RotaryEmbedding, rotate
from deeproot.engine.weights import WeightSource


class LlamaAttention:
    """Projections and rotary embedding around the attention backend."""

    def __init__(self, config: ModelConfig, weights: WeightSource, layer: int) -> None:
        prefix = f"model.layers.{layer}.self_attn"
        dim = config.head_dim
        self.layer = layer
        self.num_qo_heads, self.num_kv_heads, self.head_dim = config.num_qo_heads, config.num_kv_heads, dim
        self.qkv = Linear.load(
            weights,
            [f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj"],
            [config.num_qo_heads * dim, config.num_kv_heads * dim, config.num_kv_heads * dim],
            config.hidden_size,
            config.attention_bias,
        )
        self.out = Linear.load(
            weights,
            [f"{prefix}.o_proj"],
            [config.hidden_size],
            config.num_qo_heads * dim,
            config.attention_bias,
        )

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        num_turned = self.num_qo_heads + self.num_kv_heads
        turned = rotate(heads[:, :num_turned], cos, sin)
        q, k, v = turned[:, : self.num_qo_heads], turned[:, self.num_qo_heads :], heads[:, num_turned:]
        return self.out(attention.run(self.layer, q, k, v).flatten(1))


class LlamaMLP:
    def __init__(self, config: ModelConfig, weights: WeightSource, layer: int) -> None:
        prefix = f"model.layers.{layer}.mlp"
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up = Linear.load(
            weights, [f"{prefix}.gate_proj", f"{prefix}.up_proj"], [inner, inner], hidden, config.mlp_bias
        )
        self.down = Linear.load(weights, [f"{prefix}.down_proj"], [hidden], inner, config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu_mul(self.gate_up(x)))


class LlamaLayer:
    def __init__(self, config: ModelConfig, weights: WeightSource, layer: int) -> None:
        prefix = f"model.layers.{layer}"
        self.attention_norm = _norm(config, weights, f"{prefix}.input_layernorm")
        self.attention = LlamaAttention(config, weights, layer)
        self.mlp_norm = _norm(config, weights, f"{prefix}.post_attention_layernorm")
        self.mlp = LlamaMLP(config, weights, layer)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, attention)
        return x + self.mlp(self.mlp_norm(x))


class LlamaForCausalLM:
    """See CausalLM."""

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None:
        self.config = config
        table = (config.vocab_size, config.hidden_size)
        self.embedding = Embedding(weights.take("model.embed_tokens.weight", table))
        self.layers = [LlamaLayer(config, weights, layer) for layer in range(config.num_layers)]
        self.norm = _norm(config, weights, "model.norm")
        tied = config.tie_word_embeddings
        self.head = self.embedding.weight if tied else weights.take("lm_head.weight", table)
        self.rope = RotaryEmbedding(config.rope, config.max_position_embeddings, device)
        weights.finish(ignored=["lm_head.weight"] if tied else [])

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        x = self.embedding(input_ids)
        cos, sin = self.rope(positions)
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self.head).float()


def _norm(config: ModelConfig, weights: WeightSource, name: str) -> RMSNorm:
    return RMSNorm(weights.take(f"{name}.weight", (config.hidden_size,)), config.rms_norm_eps)
