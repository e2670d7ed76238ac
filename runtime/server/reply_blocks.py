"""A reply as the row of blocks that the Messages and the Responses API speak of: thinking, text, calls."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    CallTruncated,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
)

Kind = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class ReplyBlock:
    """A part of a reply, as far as it is known."""

    index: int
    """Counts a reply's blocks from 0."""
    kind: Kind
    text: str = ""
    """Of a call its arguments: JSON."""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    block: ReplyBlock


@dataclass(frozen=True, slots=True)
class Grown:
    block: ReplyBlock
    text: str
    """What came to the end of it."""


@dataclass(frozen=True, slots=True)
class Closed:
    block: ReplyBlock


Change = Opened | Grown | Closed


class ReplyBlocks:
    """Groups a reply's events into blocks as they come. At most one block is open, and it is the last."""

    def __init__(self) -> None:
        self.blocks: list[ReplyBlock] = []
        self._is_open = False

    def feed(self, events: Iterable[ReplyEvent]) -> list[Change]:
        """Take events in order; returns what they change."""
        changes: list[Change] = []
        for event in events:
            match event:
                case ReasoningDelta(text):
                    changes += self._grow("reasoning", text)
                case ContentDelta(text):
                    changes += self._grow("text", text)
                case CallStart(_, call_id, name):
                    changes += self._open(ReplyBlock(len(self.blocks), "call", "", call_id, name))
                case ArgumentsDelta(_, text):
                    changes += self._grow("call", text)
                case CallEnd():
                    changes += self.close()
                case CallTruncated():
                    pass  # what there was of the call comes as content
        return changes

    def close(self) -> list[Change]:
        """The open block, if there is one, is complete."""
        if not self._is_open:
            return []
        self._is_open = False
        return [Closed(self.blocks[-1])]

    def _grow(self, kind: Kind, text: str) -> Sequence[Change]:
        changes: list[Change] = []
        if not self._is_open or self.blocks[-1].kind != kind:
            changes += self._open(ReplyBlock(len(self.blocks), kind))
        block = self.blocks[-1]
        block.text += text
        return [*changes, Grown(block, text)]

    def _open(self, block: ReplyBlock) -> list[Change]:
        changes = self.close()
        self.blocks.append(block)
        self._is_open = True
        return [*changes, Opened(block)]


def blocks_of(events: Iterable[ReplyEvent]) -> list[ReplyBlock]:
    """The blocks of a whole reply."""
    reply = ReplyBlocks()
    reply.feed(events)
    return reply.blocks
