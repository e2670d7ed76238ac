"""The sequences that were computed of late, to compare new prompts with. Bounded in bytes; for several threads."""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from deeproot.engine.radix_node import TOKEN_BYTES, common_tokens

_TEXT_BYTES = 8
"""About what a token takes as text, with the objects that hold the text."""
_PAST_BYTES = 1000
"""About what a record costs beside its ids and texts."""
_MOST_ALIKE = 32
"""Records that are looked at when several share the same start with a prompt."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who sent a request."""

    owner: bytes = b""
    """Digest of the API key; empty where none is asked for."""
    namespace: bytes = b""
    """Of the owner and the request's salt: what shares cached prefixes. Empty: no key and no salt."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation as it was sent."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    template_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """One request that has ended."""

    rid: str
    tenant: Tenant
    ids: bytes
    """int32: the tokens of prompt and output whose K and V were computed."""
    num_prompt: int
    chat: Chat | None
    """None: a plain prompt."""
    engine: int
    """Which engine since the start computed it."""

    @property
    def num_bytes(self) -> int:
        texts = 0 if self.chat is None else _TEXT_BYTES * self.num_prompt
        return _PAST_BYTES + len(self.ids) + texts


class History:
    """Requests by what they begin with. The least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: about what it may hold; 0 remembers nothing."""
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._by_rid: OrderedDict[str, Past] = OrderedDict()
        self._used: dict[str, int] = {}
        """When each was used last, on a clock of its own."""
        self._clock = 0
        self._sorted: dict[bytes, list[Past]] = {}
        """Of each namespace, by their ids: those that share most with a prompt stand where it would stand."""
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, past: Past) -> None:
        """Remember a request; one whose sequence it continues is no longer needed and goes."""
        if past.num_bytes > self._max_bytes:
            return
        with self._lock:
            if past.rid in self._by_rid:
                self._drop(self._by_rid[past.rid])
            line = self._sorted.setdefault(past.tenant.namespace, [])
            i = bisect_left(line, past.ids, key=_ids)
            # One that continues another, or was the same, stands next to it.
            while i < len(line) and line[i].ids == past.ids:
                self._drop(line[i])
            if i > 0 and past.ids.startswith(line[i - 1].ids):
                i -= 1
                self._drop(line[i])
            self._sorted.setdefault(past.tenant.namespace, line).insert(i, past)
            self._by_rid[past.rid] = past
            self._use(past.rid)
            self._num_bytes += past.num_bytes
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._by_rid.values())))

    def get(self, rid: str) -> Past | None:
        with self._lock:
            return self._by_rid.get(rid)

    def nearest(self, namespace: bytes, ids: bytes, chat: Chat | None) -> tuple[Past | None, int]:
        """The request that shares most of its start with a prompt, and how many tokens.

        Of several, the one that has most messages of `chat`, and of these the one used last. Counts as a use.
        """
        with self._lock:
            line = self._sorted.get(namespace, [])
            i = bisect_left(line, ids, key=_ids)
            common = max((common_tokens(past.ids, ids) for past in line[max(i - 1, 0) : i + 1]), default=0)
            if not common:
                return None, 0
            start = ids[: common * TOKEN_BYTES]
            first = bisect_left(line, start, key=_ids)
            end = bisect_right(line, start, first, key=lambda past: past.ids[: len(start)])
            alike = nlargest(_MOST_ALIKE, line[first:end], key=lambda past: self._used[past.rid])
            best = max(alike, key=lambda past: _shared_messages(past.chat, chat))
            self._use(best.rid)
            return best, common

    def _use(self, rid: str) -> None:
        self._clock += 1
        self._used[rid] = self._clock
        self._by_rid.move_to_end(rid)

    def _drop(self, past: Past) -> None:
        del self._by_rid[past.rid], self._used[past.rid]
        line = self._sorted[past.tenant.namespace]
        del line[bisect_left(line, past.ids, key=_ids)]
        if not line:
            del self._sorted[past.tenant.namespace]
        self._num_bytes -= past.num_bytes


def _ids(past: Past) -> bytes:
    return past.ids


def _shared_messages(one: Chat | None, other: Chat | None) -> int:
    if one is None or other is None:
        return 0
    return sum(a == b for a, b in zip(one.messages, other.messages, strict=False))
