"""From an engine's tokens to reasoning, text, tool calls and an end: the same for streams, whole answers and `LLM`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from deeproot.runtime.chat.detokenizer import Detokenizer
from deeproot.runtime.chat.reply_events import CallEnd, CallStart, ContentDelta, ReplyEvent
from deeproot.runtime.chat.reply_parser import ReplyParser
from deeproot.runtime.chat.stops import StopMatcher
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.scheduler.messages import FinishReason, TokenLogprobs, TokenOutput, Usage

EndReason = FinishReason | Literal["tool_calls"]


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """How an output ended, and what it took."""

    reason: EndReason
    usage: Usage
    """Its `output` counts the tokens up to the end of the text, also where the engine had gone on."""
    error: str | None = None
    stop_text: str | None = None
    """The stop string that ended it, if one did."""
    reasoning_tokens: int = 0
    """Of the output, those that are reasoning, its marks among them."""


class OutputText:
    """Turns the `TokenOutput`s of one request into events.

    The text may be complete before the engine knows: at a stop string, or at the end of the only tool call that was
    asked for. `wants_abort` is True then; whatever still comes is dropped, and the engine's last output gives the
    usage.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        parser: ReplyParser | None = None,
        single_call: bool = False,
        continues_text: bool = False,
        min_tokens: int = 0,
        no_output: bool = False,
    ) -> None:
        """`parser`: None leaves everything content. `single_call`: end after the first tool call.
        `continues_text`: see `Detokenizer`. `min_tokens`: stop strings in the text of the first ones end nothing.
        `no_output`: drop whatever comes, since only the prompt was of interest."""
        marks = parser.marks if parser is not None else ()
        keep = [token_id for mark in marks if (token_id := tokenizer.id_of(mark)) is not None]
        self._detokenizer = Detokenizer(tokenizer, keep=keep, continues_text=continues_text)
        self._stops = StopMatcher(stop)
        self._parser = parser
        self._has_stops = bool(stop)
        self._single_call = single_call
        self._has_calls = False
        self._min_tokens = min_tokens
        self._no_output = no_output
        self._complete = no_output
        self._stop_text: str | None = None
        self._num_reasoning = 0
        self.logprobs: list[TokenLogprobs] = []
        """Of the text's tokens, if the request asked for any; an end token is not part of the text."""
        self.prompt_logprobs: list[TokenLogprobs] = []
        """Of the prompt's tokens from the second on, if the request asked for any."""
        self._num_taken = 0
        self.token_ids: list[int] = []
        """Tokens up to the end of the text, an end token among them."""
        self.end: OutputEnd | None = None

    @property
    def wants_abort(self) -> bool:
        """Whether the engine should be told to stop."""
        return self._complete and self.end is None

    def feed(self, output: TokenOutput) -> list[ReplyEvent]:
        """Take the next output; returns what is certain now. After the last one, `end` is set."""
        events: list[ReplyEvent] = []
        self.prompt_logprobs += output.prompt_logprobs
        if output.token_id is not None and not self._complete:
            self.token_ids.append(output.token_id)
            # A token that ends the request by its id is not part of the text.
            if output.finish_reason != "stop":
                if output.logprobs is not None:
                    self.logprobs.append(output.logprobs)
                was_reasoning = self._in_reasoning
                events += self._feed_text(self._detokenizer.feed(output.token_id))
                self._num_reasoning += was_reasoning or self._in_reasoning
        if output.finish_reason is not None:
            events += self._finish(output, output.finish_reason)
        return events

    def take_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """What has come to `logprobs` since the last call."""
        if len(self.logprobs) == self._num_taken:
            return ()
        taken = tuple(self.logprobs[self._num_taken :])
        self._num_taken += len(taken)
        return taken

    @property
    def _in_reasoning(self) -> bool:
        return self._parser is not None and self._parser.in_reasoning

    def _feed_text(self, text: str) -> list[ReplyEvent]:
        if not self._has_stops or (self._min_tokens and len(self.token_ids) <= self._min_tokens):
            return self._parse(text)
        found = self._stops.feed(text)
        events = self._parse(found.text)
        if found.matched is not None and not self._complete:
            events += self._parse_end()
            self._complete = True
            self._stop_text = found.matched
        return events

    def _finish(self, output: TokenOutput, reason: FinishReason) -> list[ReplyEvent]:
        events: list[ReplyEvent] = []
        ended_by_text = self._complete
        if not self._complete:
            events = self._feed_text(self._detokenizer.finish())
            if not self._complete:
                events += self._parse(self._stops.finish())
            if not self._complete:
                events += self._parse_end()
            self._complete = True
        if ended_by_text:
            reason = "length" if self._no_output else "stop"
        usage = output.usage or Usage(prompt=0, cached=0, computed=0, output=0)
        usage = msgspec.structs.replace(usage, output=len(self.token_ids))
        end: EndReason = "tool_calls" if reason == "stop" and self._has_calls else reason
        self.end = OutputEnd(end, usage, output.error, self._stop_text, self._num_reasoning)
        return events

    def _parse(self, text: str) -> list[ReplyEvent]:
        if not text:
            return []
        if self._parser is None:
            return [ContentDelta(text)]
        return self._through_first_call(self._parser.feed(text))

    def _parse_end(self) -> list[ReplyEvent]:
        return [] if self._parser is None else self._through_first_call(self._parser.finish())

    def _through_first_call(self, events: list[ReplyEvent]) -> list[ReplyEvent]:
        """Note calls; if only one is wanted, drop what follows it."""
        if self._complete:
            return []
        for i, event in enumerate(events):
            self._has_calls = self._has_calls or isinstance(event, CallStart)
            if self._single_call and isinstance(event, CallEnd):
                self._complete = True
                return events[: i + 1]
        return events
