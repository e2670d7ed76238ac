"""From a model's text to content and tool calls, as it streams: one automaton for all formats."""

from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.chat.code_spans import CodeSpans
from deeproot.runtime.chat.formats.tool_format import ToolFormat, ToolSchemas
from deeproot.runtime.chat.marks import SPACE, first_mark, start_of_partial
from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallIds,
    CallStart,
    CallTruncated,
    ContentDelta,
    ReplyEvent,
)
from deeproot.runtime.chat.text_source import NoCall, RawCall, Steps, TextSource, Truncated


class CallParser:
    """Finds the calls of one format in a reply.

    The events' joined content, and the calls, are the same however the text is cut into `feed`s. No part of a mark is
    ever shown as content, unless it turns out that it was none. No input raises.

    A call is reported when it is complete, in one piece of arguments: until then it may still prove malformed, and
    malformed calls are plain text. So is a call inside Markdown code, which is an example. White space between text
    and a call, between calls, and after the last call belongs to the format and is dropped; a reply without calls
    comes back exactly.
    """

    def __init__(
        self, format: ToolFormat, schemas: ToolSchemas | None = None, call_ids: CallIds | None = None
    ) -> None:
        self._format = format
        self._schemas: ToolSchemas = schemas or {}
        self._call_ids = call_ids or format.new_call_id
        self._held = ""
        """Between calls: text that may be the start of a mark, with the white space before it."""
        self._before = ""
        """Inside calls: the mark that opened them, with white space before it; empty once a call was reported."""
        self._source: TextSource | None = None
        self._steps: Steps[None] | None = None
        """What reads calls now."""
        self._code = CodeSpans()
        self._at_start = bool(format.start_letters)
        self._ended = False
        self._num_calls = 0
        self._seen_ids: set[str] = set()
        self._just_called = False
        """Whether nothing but white space has come since the last call."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that the parser must see; if some are special tokens, the detokeniser has to keep them."""
        return self._format.marks

    def feed(self, text: str) -> list[ReplyEvent]:
        """Take the next piece of text; returns what is certain now."""
        if self._source is not None:
            self._source.add(text)
        else:
            self._held += text
        return self._run()

    def finish(self) -> list[ReplyEvent]:
        """The text has ended; returns the rest."""
        self._ended = True
        if self._source is not None:
            self._source.ended = True
        events = self._run()
        if not self._just_called or self._held.strip(SPACE):
            self._show(self._held, events)
        self._held = ""
        return events

    def _run(self) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        while True:
            going_on = (
                self._find_mark(events) if self._steps is None else self._read_call(self._steps, events)
            )
            if not going_on:
                return events

    def _find_mark(self, events: list[ReplyEvent]) -> bool:
        """Show what is text for certain; True if there is more to do."""
        text = self._held
        if self._at_start:
            body = text.lstrip(SPACE)
            if not body:
                return False
            self._at_start = False
            if body[0] in self._format.start_letters:
                self._begin(text[: len(text) - len(body)], "", body)
                return True
        found = first_mark(text, self._format.openings)
        at = found[0] if found is not None else start_of_partial(text, self._format.openings)
        shown = len(text[:at].rstrip(SPACE))
        self._show(text[:shown], events)
        if found is None:
            self._held = text[shown:]
            return False
        mark, before, rest = found[1], text[shown:at], text[at + len(found[1]) :]
        self._code.feed(before)
        if self._code.inside:
            # The white space has been followed already.
            events.append(ContentDelta(before + mark))
            self._code.feed(mark)
            self._just_called, self._held = False, rest
        else:
            self._begin(before, mark, rest)
        return True

    def _begin(self, before: str, mark: str, rest: str) -> None:
        self._before, self._held = before + mark, ""
        self._source = TextSource(rest, ended=self._ended)
        self._steps = self._format.read(self._source, mark, self._schemas)

    def _read_call(self, steps: Steps[None], events: list[ReplyEvent]) -> bool:
        """One step of the reader; True if there is more to do."""
        source = self._source
        assert source is not None, "a reader has its source"
        try:
            call = next(steps)
        except StopIteration:
            self._leave(source.rest)
        except NoCall:
            # It was no call: its mark is content, and what follows may hold another.
            self._show(self._before, events)
            self._leave(source.taken + source.rest)
        except Truncated:
            events.append(CallTruncated())
            self._show(self._before + source.taken + source.rest, events)
            self._leave("")
        else:
            if call is None:
                return False
            source.commit()
            self._before = ""
            self._report(call, events)
        return True

    def _leave(self, rest: str) -> None:
        self._source, self._steps, self._held = None, None, rest

    def _report(self, call: RawCall, events: list[ReplyEvent]) -> None:
        index, call_id = self._num_calls, call.call_id
        if call_id is None or call_id in self._seen_ids:
            call_id = self._call_ids()
        self._seen_ids.add(call_id)
        events += [
            CallStart(index, call_id, call.name),
            ArgumentsDelta(index, call.arguments),
            CallEnd(index),
        ]
        self._num_calls += 1
        self._just_called = True

    def _show(self, text: str, events: list[ReplyEvent]) -> None:
        if text:
            events.append(ContentDelta(text))
            self._code.feed(text)
            self._just_called = False


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> ToolSchemas:
    """The schemas of tools in OpenAI's form."""
    functions = [tool.get("function") for tool in tools]
    return {
        function["name"]: function.get("parameters") or {}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
