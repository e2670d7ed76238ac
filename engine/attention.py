"""The interface between a model's layers and the code that computes paged attention."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import torch

from deeproot.engine.batch import ForwardBatch


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest batch that a backend will be asked to plan: what its buffers must hold."""

    max_seqs: int
    """Sequences of a batch, those that only pad it included."""
    max_tokens: int
    """New tokens of a batch."""
    max_model_len: int
    """Tokens of a sequence."""


class AttentionBackend(Protocol):
    """Paged causal attention in two calls: `plan` once a step, `run` once a layer.

    Whatever depends only on the batch's shape (masks, gather indices, work lists) is made by `plan` and shared by
    all layers of the step.

    Under a CUDA graph, `plan` stays outside and `run` is captured. A step is captured and replayed so:
    `key = plan(padded batch)`; if there is a graph for (number of tokens, key), replay it, else capture the model's
    forward. The batch is padded by `batch.pad_decodes` with sequences of one token, which are computed like all others.
    """

    name: str

    def plan(self, batch: ForwardBatch) -> Hashable | None:
        """Prepare for the layers of one step.

        Returns what the launches of `run` depend on besides the number of tokens: a graph in which `run` was captured
        after one plan may be replayed after any later plan whose result is equal. None: `run` must not be captured.
        Copies to the device are put on the current stream, so a plan may be made while the step before it computes.
        Tokens behind those of all sequences (see `fixed_rows`) are given K and V as their slots say, and zeros.
        """

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Write the new K and V into their slots, then attend.

        q: `[T, num_qo_heads, head_dim]`, k and v: `[T, num_kv_heads, head_dim]`, rotary embedding applied.
        Returns `[T, num_qo_heads, head_dim]` in q's dtype. New token `t` of a sequence attends to every cached
        token of the sequence and to the new ones up to itself; in a layer with a window, to the last of these. Scale,
        soft cap and windows were given to the backend when it was made.
        """
        ...
