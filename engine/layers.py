"""The layers that models are made of: plain objects that hold tensors."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from deeproot.engine.fp8_product import fp8_product
from deeproot.engine.grouped_rows import Weight, dense
from deeproot.engine.weights import WeightSource


class Linear:
    """`x @ weight.T + bias`. weight: `[out_features, in_features]`."""

    def __init__(
        self, weight: Weight, bias: torch.Tensor | None = None, scales: torch.Tensor | None = None
    ) -> None:
        """scales: of a weight in e4m3, as `fp8_product.kept_scales` gives them."""
        self.weight = weight
        self.bias = bias
        self.scales = scales

    @classmethod
    def load(
        cls,
        weights: WeightSource,
        names: Sequence[str],
        out_features: Sequence[int],
        in_features: int,
        bias: bool = False,
    ) -> "Linear":
        """One layer from several stored ones that share their input; outputs stand in the order of `names`."""
        shapes = {f"{name}.weight": (n, in_features) for name, n in zip(names, out_features, strict=True)}
        weight: Weight | None = weights.take_grouped(shapes)
        scales = None
        if weight is None and (scaled := weights.take_scaled(shapes)) is not None:
            weight, scales = scaled
        if weight is None:
            weight = _join([weights.take(*shape) for shape in shapes.items()])
        if not bias:
            return cls(weight, None, scales)
        biases = [weights.take(f"{name}.bias", (n,)) for name, n in zip(names, out_features, strict=True)]
        return cls(weight, _join(biases), scales)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.scales is None:
            return F.linear(x, dense(self.weight, x.dtype), self.bias)
        assert isinstance(self.weight, torch.Tensor)
        out = fp8_product(x, self.weight, self.scales)
        return out if self.bias is None else out + self.bias


def _join(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class Embedding:
    """Rows of a table. weight: `[vocab_size, hidden_size]`."""

    def __init__(self, weight: Weight, dtype: torch.dtype) -> None:
        """dtype: of the rows that come out."""
        self.weight = weight
        self.dtype = dtype

    def __call__(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, dense(self.weight, self.dtype))


class RMSNorm:
    """Divide by the root mean square over the last dimension, in float32, then scale."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)

    def factors(self) -> torch.Tensor:
        """What channels are multiplied by in the end, `[n]` float32."""
        return self.weight.float()


class OffsetRMSNorm(RMSNorm):
    """As RMSNorm, but scaled by 1 + weight, and in float32 to the end (Gemma)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.factors()).to(x.dtype)

    def factors(self) -> torch.Tensor:
        return 1 + self.weight.float()


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of `[…, 2 n]`, gate first. Returns `[…, n]`."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` of `[…, 2 n]`, gate first, gelu by its tanh approximation. Returns `[…, n]`."""
    gate, up = gate_up.chunk(2, -1)
    return F.gelu(gate, approximate="tanh") * up


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """`cap * tanh(x / cap)`: about x where it is small, never beyond the cap. Overwrites and returns x."""
    return x.div_(cap).tanh_().mul_(cap)
