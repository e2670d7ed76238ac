"""What the text side may ask of a running engine, and what it is told. Answered between two steps."""

from typing import TypeAlias

import msgspec


class ProbeQuestion(msgspec.Struct, frozen=True, tag="probe"):
    """How much of each prompt is cached. Changes nothing, not even recency."""

    prompts: tuple[bytes, ...]
    """int32 bytes each."""
    namespace: bytes = b""
    """Only this one's sequences are looked at."""


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
    """None: of all."""


class TreeNode(msgspec.Struct, frozen=True):
    parent: int | None
    """Place of its parent in the answer; None for the first node of a sequence."""
    namespace: bytes
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
    first_ids: bytes
    """int32: its first tokens, a few."""


class TreeAnswer(msgspec.Struct, frozen=True, tag="tree"):
    nodes: tuple[TreeNode, ...]
    """Parents first."""
    num_nodes: int
    """In the tree, of all namespaces."""
    page_size: int


Question: TypeAlias = ProbeQuestion | TreeQuestion
Answer: TypeAlias = ProbeAnswer | TreeAnswer
