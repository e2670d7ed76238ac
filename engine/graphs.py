"""Forward passes of decode batches captured once and replayed, so that a step costs one launch and not hundreds.

A graph repeats its kernels with the arguments of its capture, so all that changes from step to step is at fixed
addresses: new tokens and positions in buffers here, slots, page table and work lists in those of the attention
backend, which its `plan` fills. A batch is padded to the next size for which there are graphs. Batches in which a
sequence computes more than one token are not for graphs.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

import numpy as np
import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.batch import ForwardBatch, SamplingBatch, pad_decodes
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models.base import CausalLM
from deeproot.engine.transfer import copy_into

Compute = Callable[[AttentionBackend], torch.Tensor]
"""The forward pass over the buffers, with the backend as it is when called: hidden states `[size, hidden_size]`."""


class Graph(Protocol):
    """A captured forward pass."""

    def replay(self) -> torch.Tensor:
        """Compute anew from what the buffers hold; always the same tensor, overwritten by the next replay."""
        ...


Capture = Callable[[Compute, AttentionBackend], Graph]


class DecodeGraphs:
    """Graphs by batch size and by what attention's plan says that they depend on; captured when first needed."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        attention: AttentionBackend,
        sizes: Sequence[int],
        device: torch.device,
        capture: Capture,
    ) -> None:
        """sizes: of batches, at least one; larger batches have no graphs."""
        self._model = model
        self._pool = pool
        self._attention = attention
        self._sizes = sorted(sizes)
        self._capture = capture
        self._graphs: dict[tuple[int, Hashable], Graph] = {}
        self._input_ids = torch.zeros(self._sizes[-1], dtype=torch.int64, device=device)
        self._positions = torch.zeros(self._sizes[-1], dtype=torch.int64, device=device)

    def __len__(self) -> int:
        return len(self._graphs)

    def takes(self, batch: ForwardBatch) -> bool:
        """Whether every sequence computes one token, and there are graphs for as many."""
        num_seqs = len(batch.seq_lens)
        return len(batch.input_ids) == num_seqs <= self._sizes[-1]

    def hidden(self, batch: ForwardBatch, input_ids: torch.Tensor) -> torch.Tensor:
        """Hidden states of the batch's tokens, `[size, hidden_size]`, the batch's own first; overwritten by the next.

        input_ids: `[T]` int64 on the device.
        """
        size = next(size for size in self._sizes if size >= len(batch.seq_lens))
        padded = pad_decodes(batch, size, self._pool.padding_page, self._pool.page_size)
        self._input_ids[: len(input_ids)].copy_(input_ids)
        self._input_ids[len(input_ids) : size].zero_()
        copy_into(self._positions[:size], padded.positions)
        return self._compute(padded)

    def capture_all(self) -> None:
        """Capture a graph of each size for sequences that share nothing, so that no request waits for it later."""
        for size in reversed(self._sizes):  # the largest first: the others find its memory
            self._compute(_idle_batch(size, self._pool.padding_page, self._pool.page_size))
            if not self._graphs:
                return  # attention is such that nothing can be captured

    def _compute(self, padded: ForwardBatch) -> torch.Tensor:
        size = len(padded.seq_lens)

        def compute(attention: AttentionBackend) -> torch.Tensor:
            return self._model.forward(self._input_ids[:size], self._positions[:size], attention)

        key = self._attention.plan(padded)
        if key is None:
            return compute(self._attention)
        graph = self._graphs.get((size, key))
        if graph is None:
            graph = self._graphs[size, key] = self._capture(compute, self._attention)
        return graph.replay()


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes that get graphs: 1, 2, 4, then in steps of 8, from 64 on of 16 and from 256 on of 32."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_num_seqs, 32)]
    return [*(size for size in sizes if size < max_num_seqs), max_num_seqs]


class CudaCapture:
    """A `Capture` on the current CUDA device."""

    def __init__(self) -> None:
        # Of all its graphs, since no two of them run at a time.
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute, attention: AttentionBackend) -> "CudaGraph":
        current = torch.cuda.current_stream()
        side = torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            # First uses compile kernels and allocate workspaces, which must not happen during a capture.
            compute(attention)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            hidden = compute(attention)
        return CudaGraph(graph, hidden)


class CudaGraph:
    """See Graph."""

    def __init__(self, graph: torch.cuda.CUDAGraph, hidden: torch.Tensor) -> None:
        self._graph = graph
        self._hidden = hidden

    def replay(self) -> torch.Tensor:
        self._graph.replay()
        return self._hidden


def _idle_batch(size: int, page: int, page_size: int) -> ForwardBatch:
    """Sequences of one token, all on the padding page."""
    zeros = np.zeros(size, dtype=np.int64)
    floats = np.zeros(size, dtype=np.float32)
    return ForwardBatch(
        input_ids=zeros.astype(np.int32),
        positions=zeros,
        slot_mapping=np.full(size, page * page_size, dtype=np.int64),
        page_table=np.full((size, 1), page, dtype=np.int32),
        cu_seqlens_q=np.arange(size + 1, dtype=np.int32),
        seq_lens=np.ones(size, dtype=np.int32),
        logits_indices=np.arange(size, dtype=np.int64),
        sampling=SamplingBatch(
            floats, zeros.astype(np.int32), floats + 1, floats, zeros.astype(np.uint64), zeros
        ),
    )
