"""Device memory that a plan is copied into: always the same addresses, so that captured graphs find the next plan there."""

import numpy as np
import torch

from deeproot.engine.attention import BatchLimits
from deeproot.engine.batch import ForwardBatch, Int32Array
from deeproot.engine.transfer import copy_into
from deeproot.engine.work_lists import MAX_PIECES, ListSettings, StepLists

_ALIGN = 4
"""int32 numbers: parts start at multiples of 16 bytes, which Triton compiles for."""


def _aligned(count: int) -> int:
    return -(-count // _ALIGN) * _ALIGN


class PlanBuffers:
    """The lists of a step's decodes, its slots and its page table."""

    def __init__(self, limits: BatchLimits, settings: ListSettings, device: torch.device) -> None:
        # A padded batch of decodes may have more tokens than a step is otherwise given.
        seqs = limits.max_seqs
        tokens = self.max_tokens = max(limits.max_tokens, seqs)
        self._page_size = settings.page_size
        # Each group has two sequences or more, and at most one tile that is not full.
        num_tiles = seqs // 2 + -(-seqs * settings.group // settings.block_m)
        sizes = {
            "counts": 2 * _ALIGN,
            "order": _aligned(tokens),
            "place": _aligned(tokens),
            "whole": 4 * seqs,
            "behind": 4 * seqs,
            "prefixes": 8 * num_tiles * MAX_PIECES,
        }
        ends = np.cumsum(list(sizes.values()))
        self._start = dict(zip(sizes, [0, *ends[:-1].tolist()], strict=True))
        self._host = np.zeros(int(ends[-1]), dtype=np.int32)
        self._lists = torch.zeros(len(self._host), dtype=torch.int32, device=device)
        views = {
            name: self._lists[self._start[name] : self._start[name] + size] for name, size in sizes.items()
        }
        self.num_decodes, self.num_prefixes = views["counts"][:1], views["counts"][_ALIGN : _ALIGN + 1]
        self.order, self.place = views["order"], views["place"]
        self.whole, self.behind = views["whole"].view(-1, 4), views["behind"].view(-1, 4)
        self.prefixes = views["prefixes"].view(-1, 8)
        self.slots = torch.zeros(tokens, dtype=torch.int64, device=device)
        columns = _aligned(-(-limits.max_model_len // settings.page_size))
        self.page_table = torch.zeros(seqs, columns, dtype=torch.int32, device=device)

    def fill(self, batch: ForwardBatch, lists: StepLists) -> None:
        """Copy a step into the buffers. Raises ValueError if it is larger than the limits."""
        num_tokens, num_seqs = len(batch.input_ids), len(batch.seq_lens)
        max_seqs = len(self.page_table)
        if num_tokens > self.max_tokens or num_seqs > max_seqs:
            raise ValueError(
                f"a batch of {num_tokens} tokens of {num_seqs} sequences is over the limits that attention was made "
                f"for: {self.max_tokens} tokens, {max_seqs} sequences"
            )
        # Pages behind those of the longest sequence are not read.
        table = batch.page_table[:, : -(-int(batch.seq_lens.max()) // self._page_size)]
        copy_into(self.page_table[:num_seqs, : table.shape[1]], table)
        copy_into(self.slots[:num_tokens], batch.slot_mapping)
        self._fill_lists(lists)

    def _fill_lists(self, lists: StepLists) -> None:
        end = 0
        self._host[0], self._host[_ALIGN] = lists.num_decodes, 0
        if lists.order is not None:
            place = np.empty_like(lists.order)
            place[lists.order] = np.arange(len(place), dtype=np.int32)
            self._put("order", lists.order)
            end = self._put("place", place)
        if lists.decodes is not None:
            end = self._put("whole", lists.decodes.whole)
            if lists.decodes.behind is not None:
                self._host[_ALIGN] = len(lists.decodes.prefixes)
                self._put("behind", lists.decodes.behind)
                end = self._put("prefixes", lists.decodes.prefixes)
        if end:
            copy_into(self._lists[:end], self._host[:end])

    def _put(self, name: str, values: Int32Array) -> int:
        """Write a list into the host's copy. Returns where it ends."""
        start = int(self._start[name])
        self._host[start : start + values.size] = values.ravel()
        return start + values.size
