"""Chat templates that give spans, in processes of their own (see `chat/template_processes`)."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template_processes import TemplateProcesses, no_answer
from deeproot.runtime.context.spans import ChatMessage, Span


class _Tools(NamedTuple):
    schemas: Sequence[Mapping[str, Any]]
    segment: Hashable


class RemoteSpans:
    """A `SpanProgram` that runs in a process of its own."""

    def __init__(
        self,
        processes: TemplateProcesses,
        source: str,
        special_texts: Mapping[str, str],
        now: Callable[[], datetime],
    ) -> None:
        """See `ChatTemplate`."""
        self._processes = processes
        self._program = {"source": source, "special_texts": dict(special_texts)}
        self._now = now
        self._spans({})

    def prepare(self, message: ChatMessage) -> ChatMessage:
        return message

    def prepare_tools(self, tools: Sequence[Mapping[str, Any]], segment: Hashable) -> _Tools | None:
        return _Tools(tools, segment) if tools else None

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: _Tools | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[Span]:
        """Segments stay here: they go out, and come back, as numbers."""
        numbers: dict[Hashable, int] = {}

        def number(segment: Hashable) -> int | None:
            return None if segment is None else numbers.setdefault(segment, len(numbers))

        chat = {
            "messages": [
                [message.role, [[part.text, number(part.segment)] for part in message.parts], message.fields]
                for message in messages
            ],
            "tools": None if tools is None else [list(tools.schemas), number(tools.segment)],
            "add_generation_prompt": add_generation_prompt,
            "variables": dict(variables),
        }
        try:
            spans = self._spans({"chat": chat, "now": self._now().isoformat()})
        except RecursionError:
            raise TemplateError(
                "the messages or the tools are nested too deeply; make them flatter"
            ) from None
        segments = list(numbers)
        if any(place is not None and not 0 <= place < len(segments) for _, place, _, _ in spans):
            raise no_answer()
        return [
            Span(text, None if place is None else segments[place], literal, tracked)
            for text, place, literal, tracked in spans
        ]

    def _spans(self, question: Mapping[str, Any]) -> list[tuple[str, int | None, bool, bool]]:
        spans = self._processes.ask({**self._program, **question}).spans
        if spans is None:
            raise no_answer()
        return spans
