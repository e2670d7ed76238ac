"""One step of the model: batch in, sampled tokens out, and the device left to work meanwhile."""

import numpy as np
import torch
import torch.nn.functional as F

from deeproot.engine.attention import AttentionBackend
from deeproot.engine.batch import ForwardBatch, PromptLogprobsBatch, Sampled
from deeproot.engine.fixed_rows import FixedRows, logprobs_by_rows, sampled_by_rows
from deeproot.engine.graphs import DecodeGraphs
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.logprobs import PendingLogprobs, logprobs_of, sampled_logprobs
from deeproot.engine.models.base import CausalLM
from deeproot.engine.sampling import sample
from deeproot.engine.sampling_choice import Sampler
from deeproot.engine.transfer import HostCopy, to_device

_PROMPT_ROWS = 64
"""Logits rows that exist at a time where a whole prompt's are wanted: 40 MB for a vocabulary of 150,000."""


class PendingSampled:
    """What a step samples, on its way from the device."""

    def __init__(
        self,
        tokens: torch.Tensor,
        logprobs: PendingLogprobs | None = None,
        prompt_logprobs: PendingLogprobs | None = None,
        sound: torch.Tensor | None = None,
        sound_chunks: torch.Tensor | None = None,
    ) -> None:
        """tokens: `[N]` on any device. sound: `[N]` bool there, whether each row of logits was of numbers; None: all.
        sound_chunks: see `Sampled`."""
        self._tokens = HostCopy(tokens.to(torch.int32))
        self._sound = None if sound is None else HostCopy(sound)
        self._sound_chunks = None if sound_chunks is None else HostCopy(sound_chunks)
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs

    def result(self) -> Sampled:
        """Wait until it is there. Raises what the step failed with."""
        return Sampled(
            self._tokens.wait().numpy(),
            None if self._sound is None else self._sound.wait().numpy(),
            None if self._sound_chunks is None else self._sound_chunks.wait().numpy(),
            None if self._logprobs is None else self._logprobs.result(),
            None if self._prompt_logprobs is None else self._prompt_logprobs.result(),
        )


class Runner:
    """Runs batches on one device, in the order in which they are launched. Not for use by several threads at once."""

    def __init__(
        self,
        model: CausalLM,
        pool: KVPool,
        attention: AttentionBackend,
        device: torch.device | str = "cpu",
        graphs: DecodeGraphs | None = None,
        sampler: Sampler = sample,
        fixed_rows: FixedRows | None = None,
    ) -> None:
        """pool: the one that `attention` reads and writes; the page numbers of batches are its.

        graphs: of the same model, pool and attention, replayed where they fit. fixed_rows: compute in pieces of so many
        tokens, never by graphs, so that a row's logits depend on that row alone.
        """
        self.model = model
        self.pool = pool
        self.graphs = graphs
        self.fixed_rows = fixed_rows
        self._sample = sampler if fixed_rows is None else sampled_by_rows(sampler)
        self._logprobs_of = logprobs_of if fixed_rows is None else logprobs_by_rows
        self._attention = attention
        self._device = torch.device(device)
        self._sampled: torch.Tensor | None = None
        """What the latest batch sampled, on the device."""

    @torch.inference_mode()
    def launch(self, batch: ForwardBatch) -> PendingSampled:
        """Start to compute the batch's new tokens, to fill their slots, and to sample.

        Returns before a GPU has done it; on a CPU it is done.
        """
        hidden = self._hidden(batch)
        logits = self._logits(hidden, batch)
        self._sampled = self._sample(logits, batch.sampling)
        wanted, of_prompt = batch.sampling.num_logprobs, batch.prompt_logprobs
        return PendingSampled(
            self._sampled,
            None if wanted is None else sampled_logprobs(logits, self._sampled, wanted, self._logprobs_of),
            None if of_prompt is None else self._prompt_logprobs(hidden, of_prompt),
            # NaN and infinity anywhere in a row are its greatest; a row of nothing but -inf has no token either.
            torch.isfinite(logits.amax(-1)),
            self._sound_chunks(hidden, batch),
        )

    def forward(self, batch: ForwardBatch) -> Sampled:
        """`launch` and its result."""
        return self.launch(batch).result()

    @torch.inference_mode()
    def logits(self, batch: ForwardBatch) -> torch.Tensor:
        """As `forward`, but the logits themselves: `[N, vocab_size]` float32."""
        return self._logits(self._hidden(batch), batch)

    @torch.inference_mode()
    def capture_graphs(self) -> None:
        """Capture what can be captured before the first batch comes. Overwrites the pool's padding page only."""
        if self.graphs is not None:
            self.graphs.capture_all()

    def _hidden(self, batch: ForwardBatch) -> torch.Tensor:
        """`[T or more, hidden_size]`"""
        input_ids = self._input_ids(batch)
        if self.fixed_rows is not None:
            return self._hidden_in_pieces(self.fixed_rows, batch, input_ids)
        if self.graphs is not None and self.graphs.takes(batch):
            return self.graphs.hidden(batch, input_ids)
        self._attention.plan(batch)
        return self.model.forward(input_ids, to_device(batch.positions, self._device), self._attention)

    def _hidden_in_pieces(self, cut: FixedRows, batch: ForwardBatch, input_ids: torch.Tensor) -> torch.Tensor:
        pieces = cut.split(batch)
        ids = torch.split(F.pad(input_ids, (0, len(pieces) * cut.rows - len(input_ids))), cut.rows)
        hidden = []
        for piece, own in zip(pieces, ids, strict=True):
            self._attention.plan(piece)
            positions = to_device(piece.positions, self._device)
            hidden.append(self.model.forward(own, positions, self._attention))
        return torch.cat(hidden)

    def _logits(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor:
        return self._head(hidden[to_device(batch.logits_indices, self._device)])

    def _head(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.fixed_rows is None:
            return self.model.logits(hidden)
        return self.fixed_rows.map_rows(self.model.logits, hidden)

    def _sound_chunks(self, hidden: torch.Tensor, batch: ForwardBatch) -> torch.Tensor | None:
        """What is computed from a token that is no number is none either, up to the last token of a chunk."""
        last = batch.cu_seqlens_q[1:] - 1
        if np.array_equal(last, batch.logits_indices):
            return None
        of_chunks = last[~np.isin(last, batch.logits_indices)]
        if not len(of_chunks):
            return None
        return torch.isfinite(hidden[to_device(of_chunks.astype(np.int64), self._device)]).all(-1)

    def _prompt_logprobs(self, hidden: torch.Tensor, wanted: PromptLogprobsBatch) -> PendingLogprobs:
        indices = torch.split(to_device(wanted.indices, self._device), _PROMPT_ROWS)
        tokens = torch.split(to_device(wanted.token_ids, self._device), _PROMPT_ROWS)
        parts = [
            self._logprobs_of(self._head(hidden[rows]), ids, wanted.num_logprobs)
            for rows, ids in zip(indices, tokens, strict=True)
        ]
        ids, chosen, top_ids, top = (torch.cat(columns) for columns in zip(*parts, strict=True))
        return PendingLogprobs(ids, chosen, top_ids, top)

    def _input_ids(self, batch: ForwardBatch) -> torch.Tensor:
        """`[T]` int64, with what the host does not know filled in."""
        input_ids = to_device(batch.input_ids, self._device).long()
        if batch.fed is not None:
            if self._sampled is None:
                raise RuntimeError("a batch is to be fed with tokens of the one before, but there was none")
            sampled = self._sampled[to_device(batch.fed.sampled, self._device)]
            input_ids[to_device(batch.fed.tokens, self._device)] = sampled.long()
        return input_ids
