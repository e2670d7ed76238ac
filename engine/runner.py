"""One step of the model: batch in, sampled tokens out, and the device left to work meanwhile."""

import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.batch import ForwardBatch, Int32Array
from deeproot.engine.graphs import DecodeGraphs
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models.base import CausalLM
from deeproot.engine.sampling import sample
from deeproot.engine.transfer import HostCopy, to_device


class PendingTokens:
    """Sampled tokens on their way from the device."""

    def __init__(self, tokens: torch.Tensor) -> None:
        """tokens: `[N]` on any device."""
        self._copy = HostCopy(tokens.to(torch.int32))

    def result(self) -> Int32Array:
        """Wait until they are there: `[N]`. Raises what the step failed with."""
        ids: Int32Array = self._copy.wait().numpy()
        return ids


class Runner:
    """Runs batches on one device, in the order in which they are launched. Not for use by several threads at once."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        attention: AttentionBackend,
        device: torch.device | str = "cpu",
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """pool: the one that `attention` reads and writes; the page numbers of batches are its.

        graphs: of the same model, pool and attention, replayed where they fit.
        """
        self.model = model
        self.pool = pool
        self.graphs = graphs
        self._attention = attention
        self._device = torch.device(device)
        self._sampled: torch.Tensor | None = None
        """What the latest batch sampled, on the device."""

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> PendingTokens:
        """Start to compute the batch's new tokens, to fill their slots, and to sample.

        Returns before a GPU has done it; on a CPU it is done.
        """
        self._sampled = sample(self._logits(batch), batch.sampling)
        return PendingTokens(self._sampled)

    def forward(self, batch: ForwardBatch) -> Int32Array:
        """`launch` and its result: `[N]` token ids."""
        return self.launch(batch).result()

    @torch.inference_mode()
    def logits(self, batch: ForwardBatch) -> torch.Tensor:
        """As `forward`, but the logits themselves: `[N, vocab_size]` float32."""
        return self._logits(batch)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture what can be captured before the first batch comes. Overwrites the pool's padding page only."""
        if self.graphs is not None:
            self.graphs.capture_all()

    def _logits(self, batch: ForwardBatch) -> torch.Tensor:
        hidden = self._hidden(batch)
        return self.model.logits(hidden[to_device(batch.logits_indices, self._device)])

    def _hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """`[T or more, hidden_size]`"""
        input_ids = self._input_ids(batch)
        if self.graphs is not None and self.graphs.takes(batch):
            return self.graphs.hidden(batch, input_ids)
        self._attention.plan(batch)
        return self.model.forward(input_ids, to_device(batch.positions, self._device), self._attention)

    def _input_ids(self, batch: ForwardBatch) -> torch.Tensor:
        """`[T]` int64, with what the host does not know filled in."""
        input_ids = to_device(batch.input_ids, self._device).long()
        if batch.fed is not None:
            if self._sampled is None:
                raise RuntimeError("a batch is to be fed with tokens of the one before, but there was none")
            sampled = self._sampled[to_device(batch.fed.sampled, self._device)]
            input_ids[to_device(batch.fed.tokens, self._device)] = sampled.long()
        return input_ids
