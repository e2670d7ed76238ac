"""Ids of pieces of prompts that were tokenised before: of a conversation that comes again, only what is new is tokenised."""

import threading
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from deeproot.runtime.chat.tokenizer import Encoder, Int32Array

_ENTRY_BYTES = 300
"""About what an entry costs beside its text and its ids."""


class PieceMemory:
    """The least recently used go first. For several threads."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: about what it may hold; 0 remembers nothing."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: OrderedDict[tuple[bytes, str], Int32Array] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def encode(self, scope: bytes, pieces: Iterable[str], encoder: Encoder) -> Int32Array:
        """`[num_tokens]` ids of the pieces one after another. `scope`: what else the ids depend on, and who may know from
        the time it takes that a piece has been here before."""
        found = [self._of_piece((scope, piece), encoder) for piece in pieces]
        return np.concatenate(found) if found else np.empty(0, np.int32)

    def _of_piece(self, key: tuple[bytes, str], encoder: Encoder) -> Int32Array:
        with self._lock:
            ids = self._known.get(key)
            if ids is not None:
                self._known.move_to_end(key)
                return ids
        ids = encoder(key[1])
        size = _size(key, ids)
        if size <= self._max_bytes:
            with self._lock:
                if key not in self._known:
                    self._known[key] = ids
                    self._num_bytes += size
                while self._num_bytes > self._max_bytes:
                    self._num_bytes -= _size(*self._known.popitem(last=False))
        return ids


def _size(key: tuple[bytes, str], ids: Int32Array) -> int:
    return _ENTRY_BYTES + 4 * len(key[1]) + ids.nbytes
