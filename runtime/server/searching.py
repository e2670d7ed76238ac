"""Chat completions with deferred tools: searches are answered here, and the reply goes on."""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    ReplyEvent,
    collect,
)
from deeproot.runtime.chat.search_memory import Searches, scope_of
from deeproot.runtime.chat.tool_search import NAME, ToolShelf, shelf_of
from deeproot.runtime.client import EngineClient
from deeproot.runtime.explain.history import Chat, Tenant
from deeproot.runtime.output_text import OutputEnd
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.explaining import Explaining
from deeproot.runtime.server.job import Job, Piece
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.responses import AppliedEdit
from deeproot.runtime.server.state import Serving
from deeproot.scheduler.messages import Usage

MAX_ROUNDS = 4
"""Replies that only search, before the last one."""

Follow = Callable[[Searches, Usage], Job | None]
"""The next reply after searches, given what was used so far; None if no token is left for it."""


def arranged(serving: Serving, tenant: Tenant, chat: Chat) -> tuple[Chat, ToolShelf | None]:
    """What the template gets of a conversation: without deferred tools, and with the searches for them. The tools
    apart, if some are deferred. Raises ApiError."""
    try:
        shelf = shelf_of(chat.tools)
    except TemplateError as error:
        raise invalid(f"{error}.", error.field) from None
    if shelf is None:
        plain = [{k: v for k, v in tool.items() if k != "defer_loading"} for tool in chat.tools]
        return dataclasses.replace(chat, tools=plain), None
    scope = scope_of(tenant.namespace, chat.tools)
    messages = serving.searches.arranged(scope, chat.messages, shelf)
    return dataclasses.replace(chat, messages=messages, tools=shelf.shown), shelf


class SearchingJob:
    """As a `Job` of one choice, which may take several replies of the model."""

    def __init__(
        self,
        job: Job,
        shelf: ToolShelf,
        follow: Follow,
        applied_edits: tuple[AppliedEdit, ...] | None = None,
    ) -> None:
        """`job`: the first reply. `follow` is called in a thread. `applied_edits`: see `Job`."""
        self.applied_edits = applied_edits
        self._job = job
        self._shelf = shelf
        self._searches = Searches()
        self._follow = follow
        self._shown = _WithoutSearches()
        self._used = Usage(prompt=0, cached=0, computed=0, output=0)
        self._reasoning_tokens = 0

    @property
    def choices(self) -> int:
        return 1

    @property
    def num_prompt(self) -> int:
        """Tokens of the first reply's prompt."""
        return self._job.num_prompt

    @property
    def explaining(self) -> Explaining | None:
        """Of the last reply."""
        return self._job.explaining

    async def run(self, client: EngineClient, metrics: Metrics) -> AsyncGenerator[list[Piece], None]:
        """See `Job.run`. The usage is that of all replies together."""
        for rounds in range(MAX_ROUNDS + 1):
            events: list[ReplyEvent] = []
            ends: list[OutputEnd] = []
            async with aclosing(self._job.run(client, metrics)) as batches:
                async for batch in batches:
                    events += [event for piece in batch for event in piece.events]
                    ends += [piece.end for piece in batch if piece.end is not None]
                    yield [Piece(p.index, self._shown.of(p.events), None) for p in batch]
            (end,) = ends
            self._add(end)
            reply = collect(events)
            searches = end.reason == "tool_calls" and all(call.name == NAME for call in reply.calls)
            following = None
            if searches and rounds < MAX_ROUNDS:
                self._searches = self._searches.followed_by(self._shelf, reply)
                following = await asyncio.to_thread(self._follow, self._searches, self._used)
                if following is None:
                    end = dataclasses.replace(end, reason="length")
            if following is None:
                yield [Piece(0, (), self._end(end))]
                return
            self._job = following

    def _add(self, end: OutputEnd) -> None:
        used, more = self._used, end.usage
        sums = {name: getattr(used, name) + getattr(more, name) for name in used.__struct_fields__}
        self._used = msgspec.structs.replace(used, **sums)
        self._reasoning_tokens += end.reasoning_tokens

    def _end(self, end: OutputEnd) -> OutputEnd:
        if end.reason == "tool_calls" and not self._shown.num_calls:
            end = dataclasses.replace(end, reason="stop")
        return dataclasses.replace(end, usage=self._used, reasoning_tokens=self._reasoning_tokens)


class _WithoutSearches:
    """Events of replies, one after another, without those of searches, and with calls counted anew."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._hidden = False
        """Whether the call that is being told is a search."""

    def of(self, events: Sequence[ReplyEvent]) -> list[ReplyEvent]:
        shown: list[ReplyEvent] = []
        for event in events:
            if isinstance(event, CallStart):
                self._hidden = event.name == NAME
                self.num_calls += not self._hidden
            if not isinstance(event, CallStart | ArgumentsDelta | CallEnd):
                shown.append(event)
            elif not self._hidden:
                shown.append(dataclasses.replace(event, index=self.num_calls - 1))
        return shown
