"""From a model's text to content and tool calls, as it streams."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of plain text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call is certain. `index` counts the calls of one answer from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of a call's arguments: JSON exactly as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


@dataclass(frozen=True, slots=True)
class CallTruncated:
    """The answer ended inside a call. What there was of it comes as content."""


ToolEvent = ContentDelta | CallStart | ArgumentsDelta | CallEnd | CallTruncated


class ToolParser(Protocol):
    """An automaton for one format of tool calls.

    The events' joined content, and the calls, are the same however the text is cut into `feed`s. No part of a mark is
    ever shown as content, unless it turns out that it was none. No input raises.
    """

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that the parser must see; if some are special tokens, the detokeniser has to keep them."""

    def feed(self, text: str) -> list[ToolEvent]:
        """Take the next piece of text; returns what is certain now."""

    def finish(self) -> list[ToolEvent]:
        """The text has ended; returns the rest."""


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid4().hex[:24]}"


CallIds = Callable[[], str]


@dataclass(frozen=True, slots=True)
class ToolCall:
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    content: str
    calls: tuple[ToolCall, ...]
    truncated: bool
    """Whether the answer ended inside a call."""


def collect(events: Iterable[ToolEvent]) -> ParsedAnswer:
    """What a run of events says in all."""
    content: list[str] = []
    starts: list[CallStart] = []
    arguments: dict[int, str] = {}
    truncated = False
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case CallStart(index):
                starts.append(event)
                arguments[index] = ""
            case ArgumentsDelta(index, text):
                arguments[index] += text
            case CallTruncated():
                truncated = True
            case CallEnd():
                pass
    calls = tuple(ToolCall(start.call_id, start.name, arguments[start.index]) for start in starts)
    return ParsedAnswer("".join(content), calls, truncated)


def parse_answer(parser: ToolParser, text: str) -> ParsedAnswer:
    """Parse a whole answer with a fresh parser."""
    return collect([*parser.feed(text), *parser.finish()])
