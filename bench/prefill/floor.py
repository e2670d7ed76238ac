"""What a prefill needs at the least: the closed formulas, corrected for a model's shapes, and a floor on a device."""

from dataclasses import dataclass

from deeproot.engine.config import ModelConfig
from deeproot.kernels.cost import Cost, attended, floor_seconds, paged_prefill, prefill_estimate
from deeproot.kernels.devices import Device

_BYTES = 2
"""Of a weight or a value in bf16."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """`layer_weights`: of the matrices of one layer that every token passes; `head_weights`: of the last product."""

    layer_weights: int
    head_weights: int

    @staticmethod
    def of(config: ModelConfig) -> "Shapes":
        d, heads, kv_heads = config.hidden_size, config.num_qo_heads, config.num_kv_heads
        attention = d * config.head_dim * (2 * heads + 2 * kv_heads)
        return Shapes(attention + 3 * d * config.intermediate_size, d * config.vocab_size)


def closed_formula(tokens: int, config: ModelConfig) -> int:
    """24 M L d^2 + 4 M^2 L d: FLOP of a whole prefill by the rule of thumb."""
    return prefill_estimate(tokens, config.num_layers, config.hidden_size).flops


def flops(new: int, cached: int, config: ModelConfig, sequences: int = 1) -> int:
    """FLOP by the model's real matrices, the causal mask's half, windows, and logits of one token a sequence only."""
    shapes = Shapes.of(config)
    pairs = sum(attended(new, cached, config.window(layer) or 0) for layer in range(config.num_layers))
    each = 2 * shapes.layer_weights * config.num_layers * new
    each += 4 * pairs * config.num_qo_heads * config.head_dim + 2 * shapes.head_weights
    return sequences * each


def floor_of(
    new: int, cached: int, config: ModelConfig, device: Device, chunk: int, sequences: int = 1
) -> float:
    """Seconds at the least on a device for `sequences` prompts of `new` tokens behind `cached` ones.

    Each step computes up to `chunk` tokens and reads every weight once. Raises ValueError for a chunk below 1.
    """
    if chunk < 1:
        raise ValueError(f"chunk is {chunk}; give at least 1")
    return sum(
        floor_seconds(_step_cost(part, config), device) for part in _steps(new, cached, chunk, sequences)
    )


def _steps(new: int, cached: int, chunk: int, sequences: int) -> list[list[tuple[int, int]]]:
    """The sequences' (new, cached) tokens of each step, first come first."""
    steps: list[list[tuple[int, int]]] = []
    left = 0
    for _ in range(sequences):
        done = 0
        while done < new:
            if left == 0:
                steps.append([])
                left = chunk
            take = min(left, new - done)
            steps[-1].append((take, cached + done))
            done, left = done + take, left - take
    return steps


def _step_cost(parts: list[tuple[int, int]], config: ModelConfig) -> Cost:
    shapes = Shapes.of(config)
    tokens = sum(new for new, _ in parts)
    weights = shapes.layer_weights * config.num_layers + shapes.head_weights
    products = 2.0 * shapes.layer_weights * config.num_layers * tokens + 2.0 * shapes.head_weights * len(
        parts
    )
    cost = Cost(bytes=float(_BYTES * weights), flops=products)
    for layer in range(config.num_layers):
        cost += paged_prefill(
            parts,
            config.num_qo_heads,
            config.num_kv_heads,
            config.head_dim,
            window=config.window(layer) or 0,
        )
    return cost
