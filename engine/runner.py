"""One step of the model: batch in, sampled tokens out."""

import numpy as np
import torch

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.batch import ForwardBatch, Logprobs, PromptLogprobsBatch, Sampled
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.logprobs import concatenated, logprobs_of, sampled_logprobs
from deeproot.engine.models.base import CausalLM
from deeproot.engine.sampling import sample

_PROMPT_ROWS = 64
"""Logits rows that exist at a time where a whole prompt's are wanted: 40 MB for a vocabulary of 150,000."""


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
    def forward(self, batch: ForwardBatch) -> Sampled:
        """Compute the batch's new tokens, fill their slots, and sample."""
        hidden = self._hidden(batch)
        logits = self._logits(hidden, batch)
        tokens = sample(logits, batch.sampling)
        wanted, of_prompt = batch.sampling.num_logprobs, batch.prompt_logprobs
        return Sampled(
            tokens.to("cpu", torch.int32).numpy(),
            None if wanted is None else sampled_logprobs(logits, tokens, wanted),
            None if of_prompt is None else self._prompt_logprobs(hidden, of_prompt),
        )

    @torch.inference_mode()
    def logits(self, batch: ForwardBatch) -> torch.Tensor:
        """As `forward`, but the logits themselves: `[N, vocab_size]` float32."""
        return self._logits(self._hidden(batch), batch)

    def _hidden(self, batch: ForwardBatch) -> torch.Tensor:
        self._attention.plan(batch)
        input_ids = torch.from_numpy(batch.input_ids.astype(np.int64)).to(self._device)
        positions = torch.from_numpy(batch.positions).to(self._device)
        return self.model.forward(input_ids, positions, self._attention)

    def _logits(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self.model.logits(hidden[torch.from_numpy(batch.logits_indices).to(self._device)])

    def _prompt_logprobs(self, hidden: torch.Tensor, wanted: PromptLogprobsBatch) -> Logprobs:
        indices = torch.from_numpy(wanted.indices).to(self._device)
        tokens = torch.from_numpy(wanted.token_ids).to(self._device)
        return concatenated(
            [
                logprobs_of(self.model.logits(hidden[rows]), ids, wanted.num_logprobs)
                for rows, ids in zip(
                    torch.split(indices, _PROMPT_ROWS), torch.split(tokens, _PROMPT_ROWS), strict=True
                )
            ]
        )
