"""Messages made of parts, and renderings made of spans: whose is which stretch of text."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one message's content, all of it from one segment, named by anything but None."""

    text: str
    segment: Hashable


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message whose content is made of parts. `fields`: what else it has (`tool_calls`, `name`, …)."""

    role: str
    parts: tuple[Part, ...]
    fields: Mapping[str, Any]

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts)


class Span(NamedTuple):
    """A stretch of the rendering. `segment`: whose it is; None for the prompt that asks the model to speak.

    `literal`: the template's own words, the only ones that may be control tokens. `tracked`: False where the
    template did something that could not be followed, so that the characters' origin is a guess.
    """

    text: str
    segment: Hashable
    literal: bool
    tracked: bool = True
