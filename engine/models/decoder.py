"""What the decoder-only families share: attention, MLP, the usual layer, and the model around the layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.config import Activation, ModelConfig
from deeproot.engine.grouped_rows import Weight, dense
from deeproot.engine.layers import Embedding, Linear, RMSNorm, gelu_tanh_mul, silu_mul, soft_cap
from deeproot.engine.rope import RotaryEmbedding, rotate
from deeproot.engine.weights import WeightSource

_GATES: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu_mul,
    "gelu_tanh": gelu_tanh_mul,
}


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Of what goes into attention and MLP, and, where a family has them, of what comes out."""

    before_attention: RMSNorm
    before_mlp: RMSNorm
    after_attention: RMSNorm | None = None
    after_mlp: RMSNorm | None = None


class Layer(Protocol):
    """`[T, hidden_size]` to the same. cos and sin: from RotaryEmbedding."""

    attention: "Attention"
    mlp: "GatedMLP"

    @property
    def norms(self) -> LayerNorms: ...

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor: ...


LayerMaker = Callable[[ModelConfig, WeightSource, int], Layer]
"""Called with the number of the layer."""


class Attention:
    """Projections, norms of heads and rotary embedding around the attention backend."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        layer: int,
        *,
        fused: bool = False,
        head_norm: type[RMSNorm] | None = None,
    ) -> None:
        """fused: Q, K and V are stored as one tensor. head_norm: of each head of Q and K, before they are rotated."""
        prefix = f"model.layers.{layer}.self_attn"
        dim, hidden = config.head_dim, config.hidden_size
        self.layer = layer
        self.num_qo_heads, self.num_kv_heads, self.head_dim = config.num_qo_heads, config.num_kv_heads, dim
        names = [f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj"]
        sizes = [config.num_qo_heads * dim, config.num_kv_heads * dim, config.num_kv_heads * dim]
        if fused:
            names, sizes = [f"{prefix}.qkv_proj"], [sum(sizes)]
        self.qkv = Linear.load(weights, names, sizes, hidden, config.qkv_bias)
        self.out = Linear.load(
            weights, [f"{prefix}.o_proj"], [hidden], config.num_qo_heads * dim, config.out_bias
        )
        self.head_norms: tuple[RMSNorm, RMSNorm] | None = None
        if head_norm is not None:
            q_norm, k_norm = (
                load_norm(config, weights, f"{prefix}.{name}", head_norm, dim)
                for name in ("q_norm", "k_norm")
            )
            self.head_norms = q_norm, k_norm

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        heads = self.qkv(x).view(len(x), -1, self.head_dim)
        num_q, num_turned = self.num_qo_heads, self.num_qo_heads + self.num_kv_heads
        turned = heads[:, :num_turned]
        if self.head_norms is not None:
            q_norm, k_norm = self.head_norms
            turned = torch.cat((q_norm(turned[:, :num_q]), k_norm(turned[:, num_q:])), 1)
        turned = rotate(turned, cos, sin)
        out = attention.run(self.layer, turned[:, :num_q], turned[:, num_q:], heads[:, num_turned:])
        return self.out(out.flatten(1))


class GatedMLP:
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, layer: int, *, fused: bool = False
    ) -> None:
        """fused: gate and up are stored as one tensor."""
        prefix = f"model.layers.{layer}.mlp"
        hidden, inner = config.hidden_size, config.intermediate_size
        names, sizes = [f"{prefix}.gate_proj", f"{prefix}.up_proj"], [inner, inner]
        if fused:
            names, sizes = [f"{prefix}.gate_up_proj"], [2 * inner]
        self.gate_up = Linear.load(weights, names, sizes, hidden, config.mlp_bias)
        self.down = Linear.load(weights, [f"{prefix}.down_proj"], [hidden], inner, config.mlp_bias)
        self._gate = _GATES[config.activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self._gate(self.gate_up(x)))


class PreNormLayer:
    """The usual layer: a norm before attention and one before the MLP."""

    def __init__(
        self, config: ModelConfig, weights: WeightSource, layer: int, attention: Attention, mlp: GatedMLP
    ) -> None:
        prefix = f"model.layers.{layer}"
        self.attention_norm = load_norm(config, weights, f"{prefix}.input_layernorm")
        self.attention = attention
        self.mlp_norm = load_norm(config, weights, f"{prefix}.post_attention_layernorm")
        self.mlp = mlp

    @property
    def norms(self) -> LayerNorms:
        return LayerNorms(self.attention_norm, self.mlp_norm)

    def __call__(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin, attention)
        return x + self.mlp(self.mlp_norm(x))


def plain_layer(config: ModelConfig, weights: WeightSource, layer: int) -> PreNormLayer:
    """A LayerMaker: Llama's layer."""
    attention, mlp = Attention(config, weights, layer), GatedMLP(config, weights, layer)
    return PreNormLayer(config, weights, layer, attention, mlp)


class Decoder:
    """Embedding, layers, last norm and head. See CausalLM; families are this with layers of their own."""

    def __init__(
        self,
        config: ModelConfig,
        weights: WeightSource,
        device: torch.device,
        make_layer: LayerMaker = plain_layer,
        norm: type[RMSNorm] = RMSNorm,
        embedding_scale: float | None = None,
    ) -> None:
        """norm: the last one. embedding_scale: what embeddings are multiplied by."""
        self.config = config
        table = (config.vocab_size, config.hidden_size)
        self.embedding = Embedding(_take_table(weights, "model.embed_tokens.weight", table), weights.dtype)
        self.embedding_scale: torch.Tensor | None = None
        if embedding_scale is not None:
            # Rounded to the model's dtype, as in training.
            self.embedding_scale = torch.tensor(embedding_scale, dtype=weights.dtype, device=device)
        self.layers = [make_layer(config, weights, layer) for layer in range(config.num_layers)]
        self.norm = load_norm(config, weights, "model.norm", norm)
        tied = config.tie_word_embeddings
        self.head = self.embedding.weight if tied else _take_table(weights, "lm_head.weight", table)
        self.rope = RotaryEmbedding(config.rope, config.max_position_embeddings, device)
        self.local_rope: RotaryEmbedding | None = None
        if config.local_rope is not None:
            self.local_rope = RotaryEmbedding(config.local_rope, config.max_position_embeddings, device)
        weights.finish(ignored=["lm_head.weight"] if tied else [])

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        x = self.embedding(input_ids)
        if self.embedding_scale is not None:
            x = x * self.embedding_scale
        everywhere = self.rope(positions)
        local = everywhere if self.local_rope is None else self.local_rope(positions)
        for index, layer in enumerate(self.layers):
            cos, sin = everywhere if self.config.window(index) is None else local
            x = layer(x, cos, sin, attention)
        return self.norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = F.linear(hidden, dense(self.head, hidden.dtype)).float()
        cap = self.config.logits_soft_cap
        return logits if cap is None else soft_cap(logits, cap)


def _take_table(weights: WeightSource, name: str, shape: tuple[int, int]) -> Weight:
    grouped = weights.take_grouped({name: shape})
    return weights.take(name, shape) if grouped is None else grouped


def load_norm(
    config: ModelConfig,
    weights: WeightSource,
    name: str,
    kind: type[RMSNorm] = RMSNorm,
    size: int | None = None,
) -> RMSNorm:
    """The norm of that name, over `size` channels (hidden_size if None)."""
    return kind(weights.take(f"{name}.weight", (size or config.hidden_size,)), config.rms_norm_eps)
