"""Which token ids the model wrote after which text; bounded, and safe to lose."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

_MAX_REPLIES_PER_KEY = 8
_ENTRY_BYTES = 400
"""About what an entry costs beside its text and its ids: key, objects, the dictionary's share."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model wrote once, without the token that ended it."""

    text: str
    token_ids: bytes
    """int32, native order."""
    retokenises: bool
    """Whether encoding the text gives these very ids."""

    @property
    def num_bytes(self) -> int:
        return _ENTRY_BYTES + 4 * len(self.text) + len(self.token_ids)


class ReplyMemory:
    """Replies by a digest of all that came before them; the least recently used go first. For several threads."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: about what it may hold; 0 remembers nothing."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._replies: OrderedDict[bytes, tuple[Reply, ...]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, key: bytes, reply: Reply) -> None:
        """Remember `reply`, the newest of its key. One that is larger than the bound is not remembered."""
        if reply.num_bytes > self._max_bytes:
            return
        with self._lock:
            old = self._replies.pop(key, ())
            new = (reply, *(other for other in old if other != reply))[:_MAX_REPLIES_PER_KEY]
            self._replies[key] = new
            self._num_bytes += _size(new) - _size(old)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _size(self._replies.popitem(last=False)[1])

    def get(self, key: bytes) -> tuple[Reply, ...]:
        """The replies of a key, newest first."""
        with self._lock:
            found = self._replies.get(key, ())
            if found:
                self._replies.move_to_end(key)
            return found


def _size(replies: tuple[Reply, ...]) -> int:
    return sum(reply.num_bytes for reply in replies)
