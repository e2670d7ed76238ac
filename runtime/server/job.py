"""One API call as the engine sees it: its requests, their texts, and the events that come of them."""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from deeproot.runtime.chat.reply_events import CallStart, ReplyEvent
from deeproot.runtime.client import EngineClient, EngineUnavailable, Generation
from deeproot.runtime.output_text import OutputEnd, OutputText
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.explaining import Explaining
from deeproot.runtime.server.hinting import Hinting
from deeproot.runtime.server.metrics import Metrics
from deeproot.runtime.server.responses import AppliedEdit
from deeproot.scheduler.messages import AddRequest, TokenLogprobs, TokenOutput

logger = logging.getLogger(__name__)


class Piece(msgspec.Struct, frozen=True):
    """What one step brought for one choice."""

    index: int
    events: Sequence[ReplyEvent]
    end: OutputEnd | None
    """Given with a choice's last piece."""
    logprobs: Sequence[TokenLogprobs] = ()
    """Of tokens of the text, if they were asked for."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """Of the next tokens of the prompt, from its second on, if they were asked for."""


@dataclass(slots=True)
class Job:
    """The requests of one API call, one a choice, and what has become of them."""

    endpoint: str
    """As the metrics call it: `chat` or `completions`."""
    requests: tuple[AddRequest, ...]
    texts: tuple[OutputText, ...]
    started: float = field(default_factory=time.perf_counter)
    remember: Callable[[int, list[int]], None] = lambda _index, _token_ids: None
    """Called with every choice that has ended well, and the tokens that it wrote, before the client knows."""
    tokens_saved: int = 0
    """Of the prompts, by remembered replies."""
    choices: int = 1
    """Requests in a row that share a prompt, which is counted once."""
    explaining: Explaining | None = None
    hinting: Hinting | None = None
    traceparent: str | None = None
    """The request's header of that name: the trace that it belongs to."""
    applied_edits: tuple[AppliedEdit, ...] | None = None
    """What was cleared of the conversation; None if nothing was asked for."""
    _calls: dict[int, list[CallStart]] = field(default_factory=dict)
    """Of each choice, so far."""

    @property
    def num_prompt(self) -> int:
        """Tokens of the first request's prompt."""
        return len(self.requests[0].token_ids) // 4

    async def run(self, client: EngineClient, metrics: Metrics) -> AsyncGenerator[list[Piece], None]:
        """Submit, and yield what each step brings until every choice has ended.

        Closing the generator, or cancelling its reader, aborts what still runs. Raises EngineUnavailable, QueueFull,
        and ApiError (500) if the engine failed on a request.
        """
        index_of = {request.rid: i for i, request in enumerate(self.requests)}
        timer = _Timer(metrics, self.started)
        trace = metrics.tracer.begin(self.endpoint, list(index_of), self.traceparent, self.started)
        metrics.count_continuation(self.tokens_saved)
        try:
            async with client.generate(self.requests) as outputs:
                if self.explaining is not None:
                    self.explaining.submitted()
                async for batch in outputs:
                    pieces = []
                    for output in batch:
                        if timer.note(output):
                            trace.first_token()
                        pieces.append(self._read(index_of[output.rid], output, outputs))
                        self._hint(output.rid, pieces[-1], client)
                    yield pieces
            if self.explaining is not None:
                await self.explaining.finish(metrics)
        finally:
            trace.end([text.end for text in self.texts])
            duration = time.perf_counter() - self.started
            for text in self.texts:
                metrics.count_request(self.endpoint, text.end.reason if text.end else "abort", duration)

    def _hint(self, rid: str, piece: Piece, client: EngineClient) -> None:
        if self.hinting is None:
            return
        for event in piece.events:
            if isinstance(event, CallStart):
                self._calls.setdefault(piece.index, []).append(event)
        if piece.end is not None:
            self.hinting.ended(rid, self._calls.get(piece.index, []), client)

    def _read(self, index: int, output: TokenOutput, generation: Generation) -> Piece:
        text = self.texts[index]
        could_end = text.wants_abort
        events = text.feed(output)
        if text.wants_abort and not could_end:
            generation.abort(output.rid)
        if text.end is not None:
            self._end(index, output, text.end)
        return Piece(index, events, text.end, text.take_logprobs(), output.prompt_logprobs)

    def _end(self, index: int, last: TokenOutput, end: OutputEnd) -> None:
        """A choice has ended; raises what `run` raises if not well."""
        if last.invalid:
            raise ApiError(400, last.error or "The request cannot be served.", code="invalid_request")
        if end.reason == "error":
            raise ApiError(500, end.error or "The engine failed on this request.", code="engine_error")
        if end.reason == "abort":
            raise EngineUnavailable("The engine was stopped before the request was complete.")
        self.remember(index, self.texts[index].token_ids)
        if self.explaining is not None:
            self.explaining.ended(index, self.texts[index])


class _Timer:
    """Feeds the latency histograms."""

    def __init__(self, metrics: Metrics, started: float) -> None:
        self._metrics = metrics
        self._started = started
        self._last: dict[str, float] = {}

    def note(self, output: TokenOutput) -> bool:
        """Whether it is the first token of its choice."""
        if output.token_id is None:
            return False
        now, last = time.perf_counter(), self._last.get(output.rid)
        if last is None:
            self._metrics.first_token(now - self._started)
        else:
            self._metrics.next_token(now - last)
        self._last[output.rid] = now
        return last is None
