"""What the text side may ask of a running engine, and what it is told. Answered between two steps."""

from typing import TypeAlias

import msgspec

from deeproot.scheduler.messages import Boundary


class ProbeQuestion(msgspec.Struct, frozen=True, tag="probe"):
    """How much of each prompt is cached. Changes nothing, not even recency."""

    prompts: tuple[bytes, ...]
    """int32 bytes each."""
    namespace: bytes = b""
    """Only this one's sequences are looked at, and declared segments."""
    shared: tuple[int, ...] = ()
    """Of each prompt, how many of its first tokens are a declared segment; none of any if nothing is said."""


class ProbeAnswer(msgspec.Struct, frozen=True, tag="probe"):
    cached: tuple[int, ...]
    """Tokens from the start of each prompt whose K and V are cached."""
    tokens_per_second: float | None
    """What steps with prompts computed lately; None before the first."""


class TreeQuestion(msgspec.Struct, frozen=True, tag="tree"):
    """What the prefix tree holds, from the roots down."""

    max_nodes: int = 512
    """Nodes to tell of, at most; those nearest to the roots first."""
    namespace: bytes | None = None
    """None: of all. Else without what is shared, of which others could be told something."""


class TreeNode(msgspec.Struct, frozen=True):
    parent: int | None
    """Place of its parent in the answer; None for the first node of a sequence, as far as it is told."""
    namespace: bytes
    """Empty also of what is shared."""
    start: int
    """Tokens before it, from the start of the sequence."""
    num_tokens: int
    num_pages: int
    num_children: int
    """In the tree, also those that the answer leaves out."""
    locks: int
    """Running requests whose path leads through it."""
    used: int
    """When it was last used: the larger, the later."""
    kind: int
    """`engine.eviction.EvictionClass`."""
    lease_s: float | None
    """Until the last of its leases ends; None: it has none."""
    first_ids: bytes
    """int32: its first tokens, a few."""


class TreeAnswer(msgspec.Struct, frozen=True, tag="tree"):
    nodes: tuple[TreeNode, ...]
    """Parents first."""
    num_nodes: int
    """In the tree, of all namespaces."""
    page_size: int


class HoldQuestion(msgspec.Struct, frozen=True, tag="hold"):
    """Lease runs of the sequence of a request that had hints and has ended."""

    rid: str
    boundaries: tuple[Boundary, ...]
    """Their ends in order."""


class HoldAnswer(msgspec.Struct, frozen=True, tag="hold"):
    num_leases: int
    """That run now for it: fewer than asked for if the owner's limits leave no room or the tokens are gone."""


class ForkQuestion(msgspec.Struct, frozen=True, tag="fork"):
    """Let a second session go on from where one is."""

    namespace: bytes
    session: bytes
    new: bytes


class LeaveQuestion(msgspec.Struct, frozen=True, tag="leave"):
    """Let a session give up its tokens behind the first `keep`; all of them, and its name, if that is 0."""

    namespace: bytes
    session: bytes
    keep: int


class SessionAnswer(msgspec.Struct, frozen=True, tag="session"):
    known: bool
    """Whether there is such a session."""
    taken: bool = False
    """Of a fork, whether there is a session of the new name already."""
    num_tokens: int = 0
    """Of a fork, the tokens that it begins with."""
    scratch_pages: int = 0
    """How many pages are evicted first from now on."""


Question: TypeAlias = ProbeQuestion | TreeQuestion | HoldQuestion | ForkQuestion | LeaveQuestion
Answer: TypeAlias = ProbeAnswer | TreeAnswer | HoldAnswer | SessionAnswer
