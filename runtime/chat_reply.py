"""What the terminal chat needs to know of a reply, whoever gives it."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Message = dict[str, str]


class ChatFailed(Exception):
    """A reply could not be had; the text is one line for the user."""


@dataclass(slots=True)
class Reply:
    """Accounts of one reply, filled in while it streams."""

    asked_at: float = field(default_factory=time.perf_counter)
    first_piece_at: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def summary(self) -> str:
        """`34 tokens, 21.5 tokens/s, 0.21 s to the first; prompt 120 tokens, 96 cached`; call it at the end."""
        now = time.perf_counter()
        first = self.first_piece_at or now
        decoding = now - first
        rate = (
            f"{(self.output_tokens - 1) / decoding:.1f} tokens/s, "
            if self.output_tokens > 1 and decoding > 0
            else ""
        )
        return (
            f"{self.output_tokens} tokens, {rate}{first - self.asked_at:.2f} s to the first; "
            f"prompt {self.prompt_tokens} tokens, {self.cached_tokens} cached"
        )


class ChatPartner(Protocol):
    """Someone who answers."""

    name: str

    def stream(self, messages: Sequence[Message], reply: Reply) -> Generator[str, None, None]:
        """The reply to a conversation in pieces; closing the iterator ends it. Raises ChatFailed."""
        ...
