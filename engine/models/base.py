"""What the runner needs of a model."""

from typing import Protocol

import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.config import ModelConfig
from deeproot.engine.weights import WeightSource


class CausalLM(Protocol):
    """A decoder-only language model over packed tokens of many sequences.

    The constructor takes all its tensors from `weights` and calls `weights.finish`; it raises WeightError.
    """

    config: ModelConfig

    def __init__(self, config: ModelConfig, weights: WeightSource, device: torch.device) -> None: ...

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionBackend
    ) -> torch.Tensor:
        """Hidden states after the last norm, `[T, hidden_size]`. input_ids and positions: `[T]` int64.

        `attention.plan` has been called for the batch that these tokens are of.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[N, hidden_size]` to `[N, vocab_size]` float32."""
        ...
