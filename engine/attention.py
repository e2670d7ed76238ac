"""The interface between a model's layers and the code that computes paged attention."""

from typing import Protocol

import torch

from deeproot.engine.batch import ForwardBatch


class AttentionBackend(Protocol):
    """Paged causal attention in two calls: `plan` once a step, `run` once a layer.

    Whatever depends only on the batch's shape (masks, gather indices, work lists) is made by `plan` and shared by
    all layers of the step.
    """

    name: str

    def plan(self, batch: ForwardBatch) -> None:
        """Prepare for the layers of one step."""

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write the new K and V into their slots, then attend.

        q: `[T, num_qo_heads, head_dim]`, k and v: `[T, num_kv_heads, head_dim]`, rotary embedding applied.
        Returns `[T, num_qo_heads, head_dim]` in q's dtype. New token `t` of a sequence attends to every cached
        token of the sequence and to the new ones up to itself; in a layer with a window, to the last of these. Scale,
        soft cap and windows were given to the backend when it was made.
        """
        ...
