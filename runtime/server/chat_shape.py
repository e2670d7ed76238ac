"""Chat completions as OpenAI writes them."""

import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from deeproot.runtime.chat.reply_events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    CallTruncated,
    ContentDelta,
    ReasoningDelta,
    ReplyEvent,
    collect,
)
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.logprob_forms import chat_logprobs
from deeproot.runtime.server.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    Delta,
    FunctionCallPart,
    ToolCallDelta,
    ToolCallMessage,
    UsageInfo,
)
from deeproot.runtime.server.sse import COMPLETIONS_FRAMING
from deeproot.scheduler.messages import TokenLogprobs

_MARK = "\0"
"""Where the text goes; no name of a model has it."""


class ChatShape:
    """See `answers.Shape`. Remembers which choices of a stream have begun."""

    framing = COMPLETIONS_FRAMING

    def __init__(
        self, completion_id: str, model: str, include_usage: bool, tokenizer: Tokenizer | None = None
    ) -> None:
        """`tokenizer`: to spell the tokens of logarithms; None if none are wanted."""
        self._id = completion_id
        self._model = model
        self._created = int(time.time())
        self._usage_of_chunks = None if include_usage else UNSET
        self._tokenizer = tokenizer
        self._begun: set[int] = set()
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """Of each choice, what stands before and behind the text in a chunk with nothing else."""

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> ChatCompletion:
        indices = sorted({piece.index for piece in pieces})
        choices = [self._choice(i, [piece for piece in pieces if piece.index == i]) for i in indices]
        return ChatCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def chunks(self, piece: Piece) -> list[object]:
        if len(piece.events) == 1 and piece.end is None and not piece.logprobs and piece.index in self._begun:
            event = piece.events[0]
            if isinstance(event, ContentDelta):
                return [self._text_chunk(piece.index, event.text)]
        deltas: list[Delta] = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            deltas.append(Delta(role="assistant", content=""))
        news = [delta for event in piece.events if (delta := _delta(event)) is not None]
        logprobs = self._logprobs(piece.logprobs) if piece.logprobs else None
        if logprobs is not None and not news:
            # A token whose text is held back, or is none.
            news.append(Delta(content=""))
        chunks: list[object] = [self._chunk(piece.index, delta, None) for delta in deltas]
        for i, delta in enumerate(news):
            chunks.append(self._chunk(piece.index, delta, None, logprobs if i == 0 else None))
        if piece.end is not None:
            chunks.append(self._chunk(piece.index, Delta(), piece.end.reason))
        return chunks

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        wanted = self._usage_of_chunks is not UNSET
        if not (wanted or at_least_one):
            return []
        return [
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=[],
                usage=usage if wanted else UNSET,
            )
        ]

    def _choice(self, index: int, pieces: Sequence[Piece]) -> ChatChoice:
        answer = collect(event for piece in pieces for event in piece.events)
        calls = [
            ToolCallMessage(id=call.call_id, function=FunctionCallPart(call.arguments, call.name))
            for call in answer.calls
        ]
        message = AssistantMessage(
            content=answer.content if answer.content or not calls else None,
            reasoning_content=answer.reasoning or UNSET,
            reasoning=answer.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        end = pieces[-1].end
        assert end is not None, "a choice's last piece has its end"
        logprobs = self._logprobs([entry for piece in pieces for entry in piece.logprobs])
        return ChatChoice(index=index, message=message, logprobs=logprobs, finish_reason=end.reason)

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return None if self._tokenizer is None else chat_logprobs(entries, self._tokenizer)

    def _text_chunk(self, index: int, text: str) -> msgspec.Raw:
        """The chunk that most tokens make: all of it but the text is written once."""
        around = self._around.get(index)
        if around is None:
            mark = msgspec.json.encode(_MARK)
            whole = msgspec.json.encode(self._chunk(index, Delta(content=_MARK), None))
            before, behind = whole.rsplit(mark, 1)
            around = self._around[index] = before, behind
        return msgspec.Raw(b"".join((around[0], msgspec.json.encode(text), around[1])))

    def _chunk(
        self, index: int, delta: Delta, finish_reason: str | None, logprobs: ChatLogprobs | None = None
    ) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[
                ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=finish_reason)
            ],
            usage=self._usage_of_chunks,
        )


def _delta(event: ReplyEvent) -> Delta | None:
    match event:
        case ContentDelta(text):
            return Delta(content=text)
        case ReasoningDelta(text):
            return Delta(reasoning_content=text, reasoning=text)
        case CallStart(index, call_id, name):
            part = FunctionCallPart("", name)
            return Delta(tool_calls=[ToolCallDelta(index=index, id=call_id, type="function", function=part)])
        case ArgumentsDelta(index, text):
            return Delta(tool_calls=[ToolCallDelta(index=index, function=FunctionCallPart(text))])
        case CallEnd() | CallTruncated():
            return None
