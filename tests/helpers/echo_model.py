"""A model for scheduler tests whose next token depends on every token before it, read back from the KV pages."""

import zlib
from collections.abc import Callable

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch, Sampled
from deeproot.engine.kv_pool import KVLayout, KVPool

VOCAB = 50


def next_token(ids: list[int]) -> int:
    return zlib.crc32(np.asarray(ids, dtype=np.int32).tobytes()) % VOCAB


def repeating_token(ids: list[int]) -> int:
    """Mostly what follows from the last token alone, so that output falls into loops, but now and then from all."""
    surprise = next_token(ids)
    return surprise if surprise % 10 == 0 else (ids[-1] * 7 + 3) % VOCAB


def make_pool(page_size: int, num_pages: int) -> KVPool:
    return KVPool(KVLayout(1, 1, 2, page_size, torch.float64), num_pages)


class EchoModel:
    """Writes (token, position) as K of each new token and hashes what the page table leads back to.

    A wrong page, slot, copy or length, or a page that somebody else overwrote, changes the tokens that follow.
    """

    def __init__(self, pool: KVPool, next_token: Callable[[list[int]], int] = next_token) -> None:
        self._next_token = next_token
        self.k = pool.kv(0)[0]
        self.page_size = pool.page_size
        self.fail_next = False
        self.largest_step = 0

    def forward(self, batch: ForwardBatch) -> Sampled:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("planned failure")
        self.largest_step = max(self.largest_step, len(batch.input_ids))
        for token, position, slot in zip(batch.input_ids, batch.positions, batch.slot_mapping, strict=True):
            page, offset = divmod(int(slot), self.page_size)
            # Only what was guessed, and not what came of it, is written once more.
            held, written_at = self.k[page, 0, offset].tolist()
            assert held == 0 or written_at == position, "a slot is written twice"
            self.k[page, 0, offset] = torch.tensor([int(token) + 1, int(position)])
        sequences = np.searchsorted(batch.cu_seqlens_q, batch.logits_indices, side="right") - 1
        lengths = batch.positions[batch.logits_indices] + 1
        samples = [self._read(batch, i, n) for i, n in zip(sequences.tolist(), lengths.tolist(), strict=True)]
        return Sampled(np.array([self._next_token(ids) for ids in samples], dtype=np.int32))

    def _read(self, batch: ForwardBatch, i: int, length: int) -> list[int]:
        ids = []
        for position in range(length):
            page = int(batch.page_table[i, position // self.page_size])
            token, written_at = self.k[page, 0, position % self.page_size].tolist()
            assert written_at == position, "a page holds another position"
            ids.append(int(token) - 1)
        return ids
