"""A model for scheduler tests whose next token depends on every token before it, read back from the KV pages."""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from deeproot.engine.batch import ForwardBatch, Int32Array, Sampled
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


@dataclass(eq=False)
class EchoStep:
    """A launched step; its model computes it when it likes, at the latest when its result is asked for."""

    model: "EchoModel"
    batch: ForwardBatch
    before: "EchoStep | None"
    fails: bool
    tokens: Int32Array | None = None

    def result(self) -> Sampled:
        while self in self.model.queue:
            self.model.compute_one()
        if self.fails:
            raise RuntimeError("planned failure")
        assert self.tokens is not None
        return Sampled(self.tokens)


class EchoModel:
    """Writes (token, position) as K of each new token and hashes what the page table leads back to.

    A wrong page, slot, copy or length, or a page that somebody else overwrote, changes the tokens that follow. Steps are
    computed in order, as on a device, but as late as `lag` says, so that pages are zeroed and copied before steps
    that were launched earlier.
    """

    def __init__(self, pool: KVPool, next_token: Callable[[list[int]], int] = next_token) -> None:
        self._next_token = next_token
        self.k = pool.kv(0)[0]
        self.page_size = pool.page_size
        self.lag = 0
        """Launched steps that may be left to be computed after a launch."""
        self.queue: deque[EchoStep] = deque()
        self.fail_next = False
        """Fail at the next launch."""
        self.fail_late = False
        """Launch the next step as if all were well, and let its result fail."""
        self.largest_step = 0
        self.num_fed = 0
        self._latest: EchoStep | None = None
        self._lost: set[int] = set()

    def launch(self, batch: ForwardBatch) -> EchoStep:
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("planned failure")
        self.largest_step = max(self.largest_step, len(batch.input_ids))
        self._latest = EchoStep(self, batch, self._latest, self.fail_late)
        self.fail_late = False
        self.queue.append(self._latest)
        while len(self.queue) > self.lag:
            self.compute_one()
        return self._latest

    def compute_one(self) -> None:
        """Compute the oldest step that is not computed yet, if there is one."""
        if not self.queue:
            return
        step = self.queue.popleft()
        before, step.before = step.before, None
        if step.fails:
            # What it should have written is missing for whoever reads it, and so are its tokens.
            self._lost.update(step.batch.slot_mapping.tolist())
            return
        step.tokens = self._compute(step.batch, before)

    def _compute(self, batch: ForwardBatch, before: EchoStep | None) -> Int32Array:
        input_ids = batch.input_ids.copy()
        if batch.fed is not None:
            assert before is not None
            assert (input_ids[batch.fed.tokens] == 0).all()
            self.num_fed += len(batch.fed.tokens)
            if before.tokens is not None:
                input_ids[batch.fed.tokens] = before.tokens[batch.fed.sampled]
        for token, position, slot in zip(input_ids, batch.positions, batch.slot_mapping, strict=True):
            page, offset = divmod(int(slot), self.page_size)
            # Only what was guessed, and not what came of it, is written once more.
            held, written_at = self.k[page, 0, offset].tolist()
            assert held == 0 or written_at == position, "a slot is written twice"
            self.k[page, 0, offset] = torch.tensor([int(token) + 1, int(position)])
        sequences = np.searchsorted(batch.cu_seqlens_q, batch.logits_indices, side="right") - 1
        lengths = batch.positions[batch.logits_indices] + 1
        assert batch.sampling.positions.tolist() == lengths.tolist()
        samples = [self._read(batch, i, n) for i, n in zip(sequences.tolist(), lengths.tolist(), strict=True)]
        return np.array([self._next_token(ids) for ids in samples], dtype=np.int32)

    def _read(self, batch: ForwardBatch, i: int, length: int) -> list[int]:
        ids = []
        for position in range(length):
            page = int(batch.page_table[i, position // self.page_size])
            offset = position % self.page_size
            token, written_at = self.k[page, 0, offset].tolist()
            is_lost = token == 0 and page * self.page_size + offset in self._lost
            assert is_lost or (token > 0 and written_at == position), "a page holds another position"
            ids.append(int(token) - 1)
        return ids
