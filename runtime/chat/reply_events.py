"""What a reply consists of, as it streams: every surface renders these events, streamed or not.

A reply is any number of pieces of reasoning, of content, and of calls, in the order in which the model wrote them. A
call is `CallStart`, `ArgumentsDelta`s and `CallEnd`, with nothing of another call between. How the reply ended, and
what it took, is `output_text.OutputEnd`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model thought before it answered, without the marks around it; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A piece of plain text, never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call is certain. `index` counts the calls of one reply from 0."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of a call's arguments: together they are a JSON object, where the format is JSON as the model wrote it."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    index: int


@dataclass(frozen=True, slots=True)
class CallTruncated:
    """The reply ended inside a call. What there was of it comes as content."""


ReplyEvent = ReasoningDelta | ContentDelta | CallStart | ArgumentsDelta | CallEnd | CallTruncated

CallIds = Callable[[], str]


def new_call_id() -> str:
    """An id that no other call has."""
    return f"call_{uuid4().hex[:24]}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    call_id: str
    name: str
    arguments: str

    def as_message(self) -> dict[str, Any]:
        """In OpenAI's form, as a message of the assistant has it."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.call_id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ParsedReply:
    content: str
    calls: tuple[ToolCall, ...]
    truncated: bool
    """Whether the reply ended inside a call."""
    reasoning: str = ""


def collect(events: Iterable[ReplyEvent]) -> ParsedReply:
    """What a run of events says in all."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[CallStart] = []
    arguments: dict[int, str] = {}
    truncated = False
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
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
    return ParsedReply("".join(content), calls, truncated, "".join(reasoning))
