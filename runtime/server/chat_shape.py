"""Chat completions as OpenAI writes them."""

import time
from collections.abc import Sequence

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
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.responses import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Delta,
    FunctionCallPart,
    ToolCallDelta,
    ToolCallMessage,
    UsageInfo,
)
from deeproot.runtime.server.sse import COMPLETIONS_FRAMING


class ChatShape:
    """See `answers.Shape`. Remembers which choices of a stream have begun."""

    framing = COMPLETIONS_FRAMING

    def __init__(self, completion_id: str, model: str, include_usage: bool) -> None:
        self._id = completion_id
        self._model = model
        self._created = int(time.time())
        self._usage_of_chunks = None if include_usage else UNSET
        self._begun: set[int] = set()

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> ChatCompletion:
        indices = sorted({piece.index for piece in pieces})
        choices = [self._choice(i, [piece for piece in pieces if piece.index == i]) for i in indices]
        return ChatCompletion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def chunks(self, piece: Piece) -> list[object]:
        deltas: list[Delta] = []
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            deltas.append(Delta(role="assistant", content=""))
        deltas += [delta for event in piece.events if (delta := _delta(event)) is not None]
        chunks: list[object] = [self._chunk(piece.index, delta, None) for delta in deltas]
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
        return ChatChoice(index=index, message=message, finish_reason=end.reason)

    def _chunk(self, index: int, delta: Delta, finish_reason: str | None) -> ChatCompletionChunk:
        return ChatCompletionChunk(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[ChatChunkChoice(index=index, delta=delta, finish_reason=finish_reason)],
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
