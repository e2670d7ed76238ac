"""Which beginnings of prompts several sessions have: those are worth a root's lease, and a one-shot prompt's is not."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from deeproot.runtime.explain.history import Chat, Tenant

ROOT_ROLES = ("system", "developer")
_MAX_ROOTS = 4096


def num_root_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many messages a conversation begins with that are instructions."""
    roles = [message.get("role") for message in messages]
    return next((i for i, role in enumerate(roles) if role not in ROOT_ROLES), len(roles))


class SharedRoots:
    """Roots by who had them first. Bounded; for several threads."""

    def __init__(self) -> None:
        self._first: OrderedDict[bytes, bytes] = OrderedDict()
        """Digest of a root -> of the first session that had it; empty once there was a second."""
        self._lock = threading.Lock()

    def meet(self, tenant: Tenant, chat: Chat, session: bytes) -> bool:
        """Note that a session has this conversation's root; True if a second one has had it.

        session: empty for a conversation that says nothing of its session: its first message tells it from others.
        """
        count = num_root_messages(chat.messages)
        if not count and not chat.tools:
            return False
        root = _digest(tenant.namespace, [chat.tools, chat.messages[:count]])
        who = _digest(session, chat.messages[count : count + 1])
        with self._lock:
            first = self._first.setdefault(root, who)
            self._first.move_to_end(root)
            if first not in (b"", who):
                self._first[root] = first = b""
            if len(self._first) > _MAX_ROOTS:
                self._first.popitem(last=False)
        return not first


def _digest(key: bytes, content: object) -> bytes:
    data = msgspec.json.encode(content)
    return hashlib.blake2b(key + b"\0" + data, digest_size=16).digest()
