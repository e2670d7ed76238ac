"""One step of the model: batch in, sampled tokens out."""

import numpy as np
import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.batch import ForwardBatch, Int32Array
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.models.base import CausalLM
from deeproot.engine.sampling import sample


class Runner:
    """Runs batches on one device. Not for use by several threads at once."""

    def __init__(
        self, model: CausalLM, pool: KVPool, attention: AttentionBackend, device: torch.device | str = "cpu"
    ) -> None:
        """pool: the one that `attention` reads and writes; the page numbers of batches are its."""
        self.model = model
        self.pool = pool
        self._attention = attention
        self._device = torch.device(device)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> Int32Array:
        """Compute the batch's new tokens, fill their slots, and sample: `[N]` token ids."""
        tokens = sample(self._logits(batch), batch.sampling)
        return tokens.to("cpu", torch.int32).numpy()

    @torch.inference_mode()
    def logits(self, batch: ForwardBatch) -> torch.Tensor:
        """As `forward`, but the logits themselves: `[N, vocab_size]` float32."""
        return self._logits(batch)

    def _logits(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.plan(batch)
        input_ids = torch.from_numpy(batch.input_ids.astype(np.int64)).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        hidden = self.model.forward(input_ids, positions, self._attention)
        rows = torch.from_numpy(batch.logits_indices).to(self._device)
        return self.model.logits(hidden[rows])
