"""Jinja sources as programs that give spans: run in this process, in jinja2's sandbox and without a limit of time."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.jinja_env import compile_template
from deeproot.runtime.chat.template_programs import run_fault
from deeproot.runtime.context.jinja_tracking import (
    TrackedDict,
    TrackedList,
    Tracker,
    TrackingContext,
    make_tracking_environment,
    track,
)
from deeproot.runtime.context.spans import ChatMessage, Part, Span
from deeproot.runtime.context.tracked import LITERAL, Owner, concat, owned, runs_of

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model"})

Prepared = Any
"""What a program makes of a message or of tools, for its own `render`."""


class SpanProgram(Protocol):
    """One compiled source."""

    def prepare(self, message: ChatMessage) -> Prepared:
        """A message as the template sees it; may be kept and rendered again."""
        ...

    def prepare_tools(self, tools: Sequence[Mapping[str, Any]], segment: Hashable) -> Prepared:
        """Tool schemas, all of one segment; None if there are none."""
        ...

    def render(
        self,
        messages: Sequence[Prepared],
        tools: Prepared,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[Span]:
        """Spans whose texts add up to the rendering. Raises TemplateError if the template refuses or fails."""
        ...


class _Piece(NamedTuple):
    text: str
    owner: Owner
    current: TrackedDict | None
    """The message whose turn in a loop it was."""


class LocalSpans:
    """A template that runs in this process; holds no state between renderings."""

    def __init__(self, source: str, special_texts: Mapping[str, str], now: Callable[[], datetime]) -> None:
        """See `ChatTemplate`."""
        self._special = {name: owned(text, LITERAL) for name, text in special_texts.items()}
        self._template, _ = compile_template(make_tracking_environment(now), source)
        self._parse_arguments = True
        self._parse_arguments = self._takes_objects()

    def _takes_objects(self) -> bool:
        """Whether tool calls' arguments go in as objects, as most templates want; some put them in as text."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        asked = ChatMessage("user", (Part("a", 0),), {})
        chat = [asked, ChatMessage("assistant", (Part("", 1),), {"tool_calls": [call]})]
        try:
            self.render([self.prepare(message) for message in chat], None, False, {})
        except TemplateError as error:
            return not isinstance(error.__cause__, TypeError)
        return True

    def prepare(self, message: ChatMessage) -> TrackedDict:
        segments = tuple(part.segment for part in message.parts)
        fields = Owner("content", segments[-1])
        made = TrackedDict()
        made.owner = fields
        made.segments = segments
        # The role is one of a few known words, which templates put into their control tokens.
        made["role"] = owned(message.role, LITERAL if message.role in ROLES else fields)
        made["content"] = concat(owned(part.text, Owner("content", part.segment)) for part in message.parts)
        for key, value in message.fields.items():
            parse = key == "tool_calls" and self._parse_arguments
            made[key] = track(_parsed_arguments(value) if parse else value, fields)
        return made

    def prepare_tools(self, tools: Sequence[Mapping[str, Any]], segment: Hashable) -> TrackedList | None:
        if not tools:
            return None
        made: TrackedList = track(list(tools), Owner("content", segment))
        return made

    def render(
        self,
        messages: Sequence[TrackedDict],
        tools: TrackedList | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> list[Span]:
        pieces: list[_Piece] = []
        try:
            context = self._template.new_context(
                {
                    **self._special,
                    **track(dict(variables), Owner("content")),
                    "messages": list(messages),
                    "tools": tools,
                    "documents": None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
            assert isinstance(context, TrackingContext)
            tracker = context.tracker = Tracker()
            for text in self._template.root_render_func(context):
                _collect(text, tracker.current, pieces)
        except TemplateError:
            raise
        except Exception as error:  # A template is somebody else's program.
            raise run_fault(error) from error
        return _attribute(pieces)


def _parsed_arguments(calls: Any) -> Any:
    """Templates expect arguments as objects; the API carries them as text. What is no JSON object stays text."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        return calls
    parsed = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
            try:
                arguments = json.loads(function["arguments"])
            except ValueError:
                arguments = None
            if isinstance(arguments, dict):
                call = {**call, "function": {**function, "arguments": arguments}}
        parsed.append(call)
    return parsed


def _collect(text: str, current: TrackedDict | None, pieces: list[_Piece]) -> None:
    runs = runs_of(text)
    if len(runs) == 1:
        pieces.append(_Piece(str.__str__(text), runs[0][1], current))  # plain, as slices are
        return
    at = 0
    for length, owner in runs:
        pieces.append(_Piece(str.__getitem__(text, slice(at, at + length)), owner, current))
        at += length


def _attribute(pieces: list[_Piece]) -> list[Span]:
    """Give each piece its segment. The template's words go to the content that follows them in the same message.

    Behind a message's last content they go to that. Words outside every loop and with no content around them ask
    the model to speak, if they are the last, or else open the first message.
    """
    segments: list[Hashable] = [piece.owner.segment for piece in pieces]
    start = 0
    while start < len(pieces):
        current = pieces[start].current
        stop = start
        while stop < len(pieces) and pieces[stop].current is current:
            stop += 1
        _fill(segments, start, stop, current)
        start = stop
    _fill_backwards(segments, 0, len(pieces))
    return _spans(pieces, segments)


def _fill(segments: list[Hashable], start: int, stop: int, current: TrackedDict | None) -> None:
    """Within one turn of the loop over messages: words go to the content that follows, else to that before."""
    known = [segment for segment in segments[start:stop] if segment is not None]
    if not known:
        if current is not None and current.segments:
            segments[start:stop] = [current.segments[0]] * (stop - start)
        return
    _fill_backwards(segments, start, stop)
    for i in range(start, stop):
        if segments[i] is None:
            segments[i] = known[-1]


def _fill_backwards(segments: list[Hashable], start: int, stop: int) -> None:
    """What has no segment gets that of what follows it; the end stays as it is."""
    following: Hashable = None
    for i in range(stop - 1, start - 1, -1):
        if segments[i] is None:
            segments[i] = following
        following = segments[i]


def _spans(pieces: list[_Piece], segments: list[Hashable]) -> list[Span]:
    """Pieces with neighbours of one kind put together."""
    spans: list[Span] = []
    for piece, segment in zip(pieces, segments, strict=True):
        kind = piece.owner.kind
        literal = kind == "literal"
        tracked = kind != "unknown" or piece.text.isdigit()
        previous = spans[-1] if spans else None
        if previous and previous[1:] == (segment, literal, tracked):
            spans[-1] = Span(previous.text + piece.text, segment, literal, tracked)
        else:
            spans.append(Span(piece.text, segment, literal, tracked))
    return spans
