"""Batches cut into pieces of one fixed number of rows, so that every operation of a model always sees the same shapes.

Library products and reductions round differently for other numbers of rows. Where a row's result does not depend on which
place of a piece it has, nor on the others in it (see `invariance`), it depends on that row alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from deeproot.engine.batch import ForwardBatch, LogitEdits, SamplingBatch, TokenMask
from deeproot.engine.logprobs import logprobs_of
from deeproot.engine.sampling_choice import Sampler


@dataclass(frozen=True, slots=True)
class FixedRows:
    """How batches are cut."""

    rows: int
    padding_page: int
    """Where rows that only fill a piece write their K and V."""
    page_size: int

    def split(self, batch: ForwardBatch) -> list[ForwardBatch]:
        """The batch's tokens in pieces of `rows`, in order, the last one filled up.

        Tokens that fill up stand behind those of all sequences and belong to none: `cu_seqlens_q` ends before them.
        Logits and sampling are those of no row.
        """
        return [self._piece(batch, start) for start in range(0, len(batch.input_ids), self.rows)]

    def _piece(self, batch: ForwardBatch, start: int) -> ForwardBatch:
        end = min(start + self.rows, len(batch.input_ids))
        first, last = batch.cu_seqlens_q[:-1], batch.cu_seqlens_q[1:]
        inside = np.flatnonzero((last > start) & (first < end))
        cut = np.minimum(last[inside], end)
        fill = self.rows - (end - start)
        padding = self.padding_page * self.page_size

        def padded(values: np.ndarray, value: int) -> np.ndarray:
            return np.concatenate((values[start:end], np.full(fill, value, values.dtype)))

        return ForwardBatch(
            input_ids=padded(batch.input_ids, 0),
            positions=padded(batch.positions, 0),
            slot_mapping=padded(batch.slot_mapping, padding),
            page_table=batch.page_table[inside],
            cu_seqlens_q=np.concatenate(([0], cut - start)).astype(np.int32),
            # What comes later of a sequence has no K and V yet.
            seq_lens=batch.seq_lens[inside] - (last[inside] - cut),
            logits_indices=np.zeros(0, np.int64),
            sampling=some_rows(batch.sampling, slice(0, 0)),
        )

    def map_rows(self, function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        """`function` of the rows of `x`, piece by piece. `[N, …]` to `[N, …]`."""
        fill = -len(x) % self.rows
        filled = F.pad(x, (0, 0, 0, fill)) if fill else x
        parts = [function(part) for part in torch.split(filled, self.rows)]
        return torch.cat(parts)[: len(x)] if parts else function(x)


def sampled_by_rows(sampler: Sampler) -> Sampler:
    """The same sampler asked for one row at a time."""

    def sample(logits: torch.Tensor, settings: SamplingBatch) -> torch.Tensor:
        rows = [sampler(logits[i : i + 1], some_rows(settings, slice(i, i + 1))) for i in range(len(logits))]
        return torch.cat(rows) if rows else sampler(logits, settings)

    return sample


def logprobs_by_rows(
    logits: torch.Tensor, token_ids: torch.Tensor, num_top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `logprobs_of`: the same, one row at a time."""
    if not len(logits):
        return logprobs_of(logits, token_ids, num_top)
    rows = [logprobs_of(logits[i : i + 1], token_ids[i : i + 1], num_top) for i in range(len(logits))]
    ids, chosen, top_ids, top = (torch.cat(column) for column in zip(*rows, strict=True))
    return ids, chosen, top_ids, top


def some_rows(settings: SamplingBatch, rows: slice) -> SamplingBatch:
    """The settings of some rows, counted anew."""
    start, stop, _ = rows.indices(len(settings.temperature))
    return SamplingBatch(
        temperature=settings.temperature[rows],
        top_k=settings.top_k[rows],
        top_p=settings.top_p[rows],
        min_p=settings.min_p[rows],
        seeds=settings.seeds[rows],
        positions=settings.positions[rows],
        edits=None if settings.edits is None else _edits(settings.edits, start, stop),
        mask=None if settings.mask is None else _mask(settings.mask.result(), start, stop),
        num_logprobs=None if settings.num_logprobs is None else settings.num_logprobs[rows],
    )


def _edits(edits: LogitEdits, start: int, stop: int) -> LogitEdits:
    mine = (edits.rows >= start) & (edits.rows < stop)
    return LogitEdits(
        edits.rows[mine] - start,
        edits.token_ids[mine],
        edits.bias[mine],
        edits.repetition[mine],
        edits.penalty[mine],
    )


def _mask(mask: TokenMask, start: int, stop: int) -> TokenMask:
    mine = (mask.rows >= start) & (mask.rows < stop)
    return TokenMask(mask.rows[mine] - start, mask.words[mine])
