"""What the prefix tree is made of and answers with; no logic but the comparison of token ids.

Answers are tuples, since a frozen dataclass takes four times as long to make, on every turn of every request.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from deeproot.engine.batch import Int32Array

if TYPE_CHECKING:
    from deeproot.engine.leases import Lease

TOKEN_BYTES = 4
NO_PAGES: Int32Array = np.empty(0, dtype=np.int32)


class Node:
    """A run of cached tokens. Callers keep nodes as handles for `lock` and `unlock` and do not change them."""

    __slots__ = (
        "__weakref__",
        "child_keys",
        "children",
        "key",
        "leases",
        "locks",
        "pages",
        "parent",
        "rank",
        "start",
        "used",
        "whose",
    )

    def __init__(
        self,
        key: bytes,
        pages: Int32Array,
        parent: "Node | None",
        start: int = 0,
        whose: bytes = b"",
    ) -> None:
        self.key = key
        self.pages = pages
        self.parent = parent
        self.start = start
        """Bytes of ids before it, from the start of the sequence."""
        self.whose = whose
        """`SHARED`; where sequences leave what is shared, the mark of their namespace; empty behind that."""
        # Childless nodes, which are most, share two lists that nobody changes.
        self.child_keys = NO_KEYS
        self.children = NO_CHILDREN
        self.locks = 0
        self.used = 0
        self.rank = 0
        """Its place in the order of eviction, see `eviction`; nodes of a higher one go later."""
        self.leases: tuple[Lease, ...] = ()
        """Those that run on all of its tokens."""

    @property
    def end(self) -> int:
        """Bytes of ids up to its end, from the start of the sequence."""
        return self.start + len(self.key)

    @property
    def name(self) -> bytes:
        """What it is sorted by and found under among its parent's children."""
        return self.whose + self.key

    @property
    def is_shared(self) -> bool:
        """Whether sequences of all namespaces may lead through it."""
        return self.whose == SHARED

    @property
    def is_gone(self) -> bool:
        """Whether it has been taken out of the tree."""
        return self.parent is not None and not len(self.pages)


class Route(NamedTuple):
    """Which cached sequences a prompt may meet: those of a declared segment up to its end, its namespace's own behind it."""

    mark: bytes
    """Of its namespace, see `mark_of`."""
    shared: int = 0
    """Bytes of ids that are shared, whole pages."""

    def whose(self, start: int) -> bytes:
        """What a node on this way that begins at a byte of the sequence has as `whose`."""
        if start < self.shared:
            return SHARED
        return self.mark if start == self.shared else b""


SHARED = b"\xff"
"""In the place of a namespace's mark: of declared segments, and of the root."""


def mark_of(namespace: bytes) -> bytes:
    """Stands before the keys of a namespace's nodes where several namespaces' lie side by side. No mark begins another.

    Raises ValueError for a name of more than 254 bytes.
    """
    if len(namespace) >= SHARED[0]:
        raise ValueError(f"the namespace has {len(namespace)} bytes, at most {SHARED[0] - 1} are possible")
    return bytes((len(namespace),)) + namespace


def namespace_of(mark: bytes) -> bytes:
    """The namespace that a mark is of; empty for what is shared."""
    return mark[1:]


NO_KEYS: list[bytes] = []
NO_CHILDREN: list[Node] = []


class CopySource(NamedTuple):
    """A page whose first tokens continue a match that ended inside it. It stays `node`'s: copy, don't keep."""

    page: int
    num_tokens: int
    node: Node


class MatchResult(NamedTuple):
    node: Node
    """Where the whole pages end; lock it before anything can be evicted."""
    pages: Int32Array
    """The whole pages of the match, in order."""
    num_tokens: int
    """Tokens in `pages`."""
    copy_from: CopySource | None
    """More tokens that match, in a page that has to be copied to be used."""

    @property
    def num_reusable(self) -> int:
        """Matched tokens, those to be copied included."""
        return self.num_tokens + (self.copy_from.num_tokens if self.copy_from else 0)


class InsertResult(NamedTuple):
    node: Node
    """Where the inserted pages end; a last part-filled page that the tree had already lies below it."""
    pages: Int32Array
    """Pages of the whole path to `node` that now belong to the tree, in order."""
    num_owned: int
    """How many of the caller's pages, from the last backwards, the tree took; the others it had already."""
    dropped: Int32Array
    """Pages that the tree no longer needs, since what they held is contained in a page that it took."""


def lineage(node: Node) -> Iterator[Node]:
    """From `node` to the first of its sequence, the root left out."""
    step = node
    while step.parent is not None:
        yield step
        step = step.parent


def shared_end(node: Node) -> int:
    """Bytes of the way to `node` that are shared."""
    return next((step.end for step in lineage(node) if step.is_shared), 0)


def common_tokens(a: bytes, b: bytes) -> int:
    """Length in tokens of the common start of two sequences of int32 bytes."""
    return common_bytes(a, b, 0, len(b)) // TOKEN_BYTES


def common_bytes(key: bytes, ids: bytes, offset: int, end: int) -> int:
    """Length in bytes, a whole number of tokens, of the common start of `key` and `ids[offset:end]`."""
    n = min(len(key), end - offset) // TOKEN_BYTES
    a = np.frombuffer(key, dtype=np.int32, count=n)
    b = np.frombuffer(ids, dtype=np.int32, count=n, offset=offset)
    start, step = 0, 1024
    while start < n:  # in growing pieces: most differences come early
        differs = a[start : start + step] != b[start : start + step]
        i = int(differs.argmax())
        if differs[i]:
            return (start + i) * TOKEN_BYTES
        start += step
        step *= 4
    return n * TOKEN_BYTES
