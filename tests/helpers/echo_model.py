"""A model for scheduler tests whose next token depends on every token before it, read back from the KV pages."""

import zlib

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch, Int32Array
from deeproot.engine.kv_pool import KVLayout, KVPool

VOCAB = 50


def next_token(ids: list[int]) -> int:
    return zlib.crc32(np.asarray(ids, dtype=np.int32).tobytes()) % VOCAB


def make_pool(page_size: int, num_pages: int) -> KVPool:
    return KVPool(KVLayout(1, 1, 2, page_size, torch.float64), num_pages)


class EchoModel:
    """Writes (token, position) as K of each new token and hashes what the page table leads back to.

    A wrong page, slot, copy or length, or a page that somebody else overwrote, changes the tokens that follow.
    """

    def __init__(self, pool: KVPool) -> None:
        self.k = pool.kv(0)[0]
        self.page_size = pool.page_size
        self.fail_next = False
        self.largest_step = 0

    def forward(self, batch: ForwardBatch) -> Int32Array:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("planned failure")
        self.largest_step = max(self.largest_step, len(batch.input_ids))
        for token, position, slot in zip(batch.input_ids, batch.positions, batch.slot_mapping, strict=True):
            page, offset = divmod(int(slot), self.page_size)
            assert (self.k[page, 0, offset] == 0).all(), "a slot is written twice"
            self.k[page, 0, offset] = torch.tensor([int(token) + 1, int(position)])
        ends = batch.cu_seqlens_q[1:].tolist()
        sequence_of = {end - 1: i for i, end in enumerate(ends)}
        samples = [self._read(batch, sequence_of[i]) for i in batch.logits_indices.tolist()]
        return np.array([next_token(ids) for ids in samples], dtype=np.int32)

    def _read(self, batch: ForwardBatch, i: int) -> list[int]:
        ids = []
        for position in range(int(batch.seq_lens[i])):
            page = int(batch.page_table[i, position // self.page_size])
            token, written_at = self.k[page, 0, position % self.page_size].tolist()
            assert written_at == position, "a page holds another position"
            ids.append(int(token) - 1)
        return ids
