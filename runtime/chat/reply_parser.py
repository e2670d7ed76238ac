"""A reply's text to its events: reasoning first, then content and calls."""

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.reasoning import ReasoningParser
from deeproot.runtime.chat.reply_events import ContentDelta, ReasoningDelta, ReplyEvent


class ReplyParser:
    """Either part may be missing; without both everything is content. No input raises."""

    def __init__(self, reasoning: ReasoningParser | None = None, calls: CallParser | None = None) -> None:
        self._reasoning = reasoning
        self._calls = calls

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the parser must see; if some are special tokens, the detokeniser has to keep them."""
        own = self._reasoning.marks if self._reasoning is not None else ()
        return own + (self._calls.marks if self._calls is not None else ())

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._reasoning is not None and self._reasoning.in_reasoning

    def feed(self, text: str) -> list[ReplyEvent]:
        """Take the next piece of text; returns what is certain now."""
        if self._reasoning is None:
            return self._read([ContentDelta(text)] if text else [])
        return self._read(self._reasoning.feed(text))

    def finish(self) -> list[ReplyEvent]:
        """The text has ended; returns the rest."""
        events = self._read(self._reasoning.finish()) if self._reasoning is not None else []
        return events + (self._calls.finish() if self._calls is not None else [])

    def _read(self, pieces: list[ReasoningDelta | ContentDelta] | list[ContentDelta]) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        for piece in pieces:
            if isinstance(piece, ContentDelta) and self._calls is not None:
                events += self._calls.feed(piece.text)
            else:
                events.append(piece)
        return events
