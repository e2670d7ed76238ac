"""Reasoning that a model writes before its answer, between marks such as `<think>` and `</think>`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from deeproot.runtime.chat.marks import SPACE, first_mark, start_of_partial
from deeproot.runtime.chat.reply_events import ContentDelta, ReasoningDelta


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks around a model's reasoning."""

    name: str
    opening: str
    closing: str

    def opened_by(self, prompt: str) -> bool:
        """Whether a rendered prompt ends with the opening mark, so that the reply begins inside."""
        return prompt[-len(self.opening) - 64 :].rstrip(SPACE).endswith(self.opening)


class _State(Enum):
    START = auto()
    """Nothing but white space has come."""
    REASONING = auto()
    AFTER = auto()
    """Behind the closing mark, where white space is dropped."""
    ANSWER = auto()


class ReasoningParser:
    """Takes the reasoning out of a reply, whatever the cuts.

    Only what the reply begins with is reasoning: marks that come later are text. White space at both ends of the
    reasoning and behind its closing mark belongs to the format and is dropped; a reply without reasoning comes back
    exactly. Reasoning that is not closed lasts to the end.
    """

    def __init__(self, format: ReasoningFormat, *, opened: bool = False, ends: Sequence[str] = ()) -> None:
        """`opened`: the prompt has opened the reasoning. `ends`: texts of the answer that end reasoning too."""
        self._format = format
        self._opened = opened
        self._ends = (format.closing, *ends)
        self._state = _State.START
        self._held = ""
        """In START and REASONING, white space and what may be a part of a mark."""
        self._is_fresh = True
        """Whether none of the reasoning was shown yet."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the parser must see; if some are special tokens, the detokeniser has to keep them."""
        return (self._format.opening, self._format.closing)

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, as far as is known."""
        return self._state is _State.REASONING or (self._opened and self._state is _State.START)

    def feed(self, text: str) -> list[ReasoningDelta | ContentDelta]:
        """Take the next piece of text; returns what is certain now. Content may hold calls."""
        events: list[ReasoningDelta | ContentDelta] = []
        if self._state is _State.START:
            text = self._feed_start(text)
        if self._state is _State.REASONING:
            text = self._feed_reasoning(text, events)
        if self._state is _State.AFTER:
            text = text.lstrip(SPACE)
            if text:
                self._state = _State.ANSWER
        if text:
            events.append(ContentDelta(text))
        return events

    def finish(self) -> list[ReasoningDelta | ContentDelta]:
        """The text has ended; returns the rest."""
        held, self._held = self._held, ""
        if not self.in_reasoning:
            return [ContentDelta(held)] if held else []
        text = held.lstrip(SPACE) if self._is_fresh else held
        return [ReasoningDelta(text)] if text.strip(SPACE) else []

    def _feed_start(self, text: str) -> str:
        """Returns what to read on, in the state that follows."""
        self._held += text
        body = self._held.lstrip(SPACE)
        if body.startswith(self._format.opening):
            self._state, self._held = _State.REASONING, ""
            return body.removeprefix(self._format.opening)
        if self._format.opening.startswith(body):
            return ""
        self._state = _State.REASONING if self._opened else _State.ANSWER
        body, self._held = self._held, ""
        return body

    def _feed_reasoning(self, text: str, events: list[ReasoningDelta | ContentDelta]) -> str:
        """Returns what follows the reasoning."""
        text, self._held = self._held + text, ""
        if self._is_fresh:
            text = text.lstrip(SPACE)
        found = first_mark(text, self._ends)
        end = found[0] if found is not None else start_of_partial(text, self._ends)
        shown = text[:end].rstrip(SPACE)
        if shown:
            events.append(ReasoningDelta(shown))
            self._is_fresh = False
        if found is None:
            self._held = text[len(shown) :]
            return ""
        self._state = _State.AFTER
        return text[end + len(found[1]) :] if found[1] == self._format.closing else text[end:]
