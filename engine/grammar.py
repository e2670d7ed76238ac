"""What constrains a request's output, as the engine sees it: which tokens may come next.

A grammar is a text in the language of llguidance (Lark with `%json`, `%regex`); `grammar_llguidance` is the library
behind this interface, `bench` has another one to compare. Only the tokens' bytes are known here, no text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from deeproot.engine.batch import Int32Array

MatcherT = TypeVar("MatcherT")


class GrammarError(ValueError):
    """A grammar that cannot be used; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """What a grammar must know of a vocabulary."""

    pieces: Sequence[bytes]
    """What each id adds to the output; empty for ids that no token has."""
    special_ids: frozenset[int]
    """Control tokens: no text of a grammar can spell them, only their ids."""
    end_ids: frozenset[int]
    """Tokens that end an output. Allowed where a grammar is satisfied, and only there."""


def mask_width(vocab_size: int) -> int:
    """32-bit words of a mask."""
    return -(-vocab_size // 32)


class GrammarBackend(Protocol, Generic[MatcherT]):
    """A library's grammars over one vocabulary. May be used by several threads, but each matcher by one at a time.

    A mask is `[ceil(vocab_size / 32)]` int32: token `t` may come next where bit `t % 32` of word `t // 32` is set.
    """

    vocab_size: int

    def compile(self, grammar: str) -> MatcherT:
        """A matcher before its first token. Raises GrammarError."""
        ...

    def fork(self, matcher: MatcherT) -> MatcherT:
        """Another matcher in the same state."""
        ...

    def accept(self, matchers: Sequence[MatcherT], token_ids: Sequence[int]) -> None:
        """Advance each matcher by a token that its mask allowed."""
        ...

    def fill(self, matchers: Sequence[MatcherT], masks: Int32Array) -> None:
        """Write what each matcher allows next into `masks`, `[len(matchers), width]`."""
        ...

    def error(self, matcher: MatcherT) -> str | None:
        """Why a matcher cannot go on: a token that was not allowed, or a limit of the library's; else None."""
        ...
