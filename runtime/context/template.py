"""A model's chat template, rendered so that each character is known to be the template's or one message's."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from deeproot.runtime.context.jinja_tracking import (
    MARK,
    POP,
    PUSH,
    TemplateError,
    TrackedDict,
    TrackingEnvironment,
    track,
)
from deeproot.runtime.context.tracked import LITERAL, Owner, concat, owned, runs_of

GENERIC = (
    "{% for message in messages %}{{ message.role + ':\\n' }}{% if message.content %}{{ message.content + '\\n' }}"
    "{% endif %}{% for call in message.tool_calls or [] %}{{ call | tojson }}{{ '\\n' }}{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% if tools %}{{ 'tools:\\n' }}{{ tools | tojson }}{{ '\\n' }}{% endif %}"
    "{% if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif %}"
)
"""A stand-in where the server's template is not known: its counts are estimates."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython", "model"})


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of one message's content, all of it from one segment."""

    text: str
    segment: int


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message whose content is made of parts. `fields`: what else it has (`tool_calls`, `name`, …)."""

    role: str
    parts: tuple[Part, ...]
    fields: Mapping[str, Any]

    @property
    def content(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the rendering. `segment`: whose it is; None for the prompt that asks the model to speak.

    `literal`: the template's own words, the only ones that may be control tokens. `tracked`: False where the
    template did something that could not be followed, so that the characters' origin is a guess.
    """

    text: str
    segment: int | None
    literal: bool
    tracked: bool = True


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    owner: Owner
    current: int | None
    """The message whose turn in a loop it was."""


class _Tracker:
    """Which message the template is at, while it runs."""

    def __init__(self) -> None:
        self.current: int | None = None
        self._stack: list[int | None] = []

    def mark(self, item: Any) -> str:
        if isinstance(item, TrackedDict) and item.message is not None:
            self.current = item.message
        return ""

    def push(self) -> str:
        self._stack.append(self.current)
        return ""

    def pop(self) -> str:
        self.current = self._stack.pop()
        return ""


class ChatTemplate:
    """Compiled once, rendered for each call; holds no state between renderings.

    `special_texts`: what the template knows by name (`bos_token`, `eos_token`, …); they are its own words.
    `now`: the clock behind `strftime_now`. Raises `TemplateError` if `source` is no valid Jinja.
    """

    def __init__(
        self,
        source: str,
        *,
        special_texts: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._special = {name: owned(text, LITERAL) for name, text in (special_texts or {}).items()}
        try:
            self._template = TrackingEnvironment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the chat template is no valid Jinja (line {error.lineno}: {error.message})"
            ) from None

        self._parse_arguments = True
        self._parse_arguments = self._takes_objects()

    def _takes_objects(self) -> bool:
        """Whether tool calls' arguments go in as objects, as most templates want; some put them in as text."""
        call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        asked = ChatMessage("user", (Part("a", 0),), {})
        chat = [asked, ChatMessage("assistant", (Part("", 1),), {"tool_calls": [call]})]
        try:
            self.render(chat, add_generation_prompt=False)
        except TemplateError as error:
            return not isinstance(error.__cause__, TypeError)
        return True

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tools_segment: int | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> list[Span]:
        """The rendering as spans whose texts add up to it. Raises `TemplateError` if the template refuses."""
        tracker = _Tracker()
        tools_owner = Owner("content", None, tools_segment)
        chat = [_tracked_message(message, i, self._parse_arguments) for i, message in enumerate(messages)]
        context = self._template.new_context(
            {
                **self._special,
                **track(dict(variables or {}), Owner("content")),
                "messages": chat,
                "tools": track(list(tools), tools_owner) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                MARK: tracker.mark,
                PUSH: tracker.push,
                POP: tracker.pop,
            }
        )
        pieces: list[_Piece] = []
        try:
            for text in self._template.root_render_func(context):
                _collect(text, tracker.current, pieces)
        except TemplateError:
            raise
        except Exception as error:  # A template is somebody else's program.
            raise TemplateError(
                f"the chat template failed on this conversation ({type(error).__name__}: {error})"
            ) from error
        return _attribute(pieces, messages)


def _tracked_message(message: ChatMessage, index: int, parse_arguments: bool) -> TrackedDict:
    fields = Owner("content", index)
    made = TrackedDict()
    made.owner = fields
    made.message = index
    # The role is one of a few known words, which templates put into their control tokens.
    role_owner = LITERAL if message.role in ROLES else fields
    made["role"] = owned(message.role, role_owner)
    pieces = [owned(part.text, Owner("content", index, part.segment)) for part in message.parts]
    made["content"] = concat(pieces)
    for key, value in message.fields.items():
        made[key] = track(
            _parsed_arguments(value) if key == "tool_calls" and parse_arguments else value, fields
        )
    return made


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


def _collect(text: str, current: int | None, pieces: list[_Piece]) -> None:
    at = 0
    for length, owner in runs_of(text):
        pieces.append(_Piece(str.__getitem__(text, slice(at, at + length)), owner, current))
        at += length


def _attribute(pieces: list[_Piece], messages: Sequence[ChatMessage]) -> list[Span]:
    """Give each piece its segment. The template's words go to the content that follows them in the same message.

    Behind a message's last content they go to that. Words outside every loop and with no content around them ask
    the model to speak, if they are the last, or else open the first message.
    """
    segments: list[int | None] = [_own_segment(piece, messages) for piece in pieces]
    spans: list[Span] = []
    start = 0
    while start < len(pieces):
        stop = start
        while stop < len(pieces) and pieces[stop].current == pieces[start].current:
            stop += 1
        _fill(segments, start, stop, pieces[start].current, messages, last=stop == len(pieces))
        start = stop
    following: int | None = None
    for i in range(len(pieces) - 1, -1, -1):
        is_prompt = segments[i] is None and following is None
        if not is_prompt:
            segments[i] = following if segments[i] is None else segments[i]
            following = segments[i]
    for piece, segment in zip(pieces, segments, strict=True):
        literal = piece.owner.kind == "literal"
        tracked = piece.owner.kind != "unknown" or piece.text.isdigit()
        previous = spans[-1] if spans else None
        if previous and (previous.segment, previous.literal, previous.tracked) == (segment, literal, tracked):
            spans[-1] = Span(previous.text + piece.text, segment, literal, tracked)
        else:
            spans.append(Span(piece.text, segment, literal, tracked))
    return spans


def _own_segment(piece: _Piece, messages: Sequence[ChatMessage]) -> int | None:
    if piece.owner.kind != "content":
        return None
    if piece.owner.part is not None:
        return piece.owner.part
    if piece.owner.message is not None:
        parts = messages[piece.owner.message].parts
        return parts[-1].segment if parts else None
    return None


def _fill(
    segments: list[int | None],
    start: int,
    stop: int,
    current: int | None,
    messages: Sequence[ChatMessage],
    *,
    last: bool,
) -> None:
    """Within one turn of the loop over messages: words go to the content that follows, else to that before."""
    known = [segments[i] for i in range(start, stop) if segments[i] is not None]
    if not known:
        parts = messages[current].parts if current is not None else ()
        if parts:
            segments[start:stop] = [parts[0].segment] * (stop - start)
        return
    following: int | None = None
    for i in range(stop - 1, start - 1, -1):
        if segments[i] is None:
            segments[i] = following
        following = segments[i]
    for i in range(start, stop):
        if segments[i] is None:
            segments[i] = known[-1]
