"""Replies as the Responses API writes them, whole and as a stream of named, numbered events."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.output_text import OutputEnd
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.logprob_forms import chat_logprobs
from deeproot.runtime.server.reply_blocks import Change, Closed, Grown, Opened, ReplyBlock, ReplyBlocks
from deeproot.runtime.server.responses import TokenLogprob, UsageInfo
from deeproot.runtime.server.responses_api.output import Fields, ItemIds, empty_part, output_item, output_part
from deeproot.runtime.server.sse import Framing, named_event


def _event(content: object) -> bytes:
    assert isinstance(content, dict)
    return named_event(content["type"], content)


class ResponsesShape:
    """See `answers.Shape`. One response: keeps how far its stream has come."""

    def __init__(
        self,
        response_id: str,
        fields: Mapping[str, Any],
        on_complete: Callable[[Fields], None],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """`fields`: what the response repeats of its request. `on_complete` gets the whole response, before the
        client does. `tokenizer`: to spell logarithms of probabilities, if they were asked for."""
        self._base: Fields = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            **fields,
        }
        self._on_complete = on_complete
        self._tokenizer = tokenizer
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        """Of each message's tokens, by the index of its block."""
        self._held: list[TokenLogprob] = []
        """Of tokens that have shown no text yet, such as the first bytes of a character."""
        self._ids = ItemIds()
        self._reply = ReplyBlocks()
        self._sequence = 0
        self._end: OutputEnd | None = None

    @property
    def framing(self) -> Framing:
        return Framing(_event, self._failure, b"")

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> Fields:
        for piece in pieces:
            self._reply.feed(piece.events)
            self._take_logprobs(piece)
            self._end = piece.end
        return self._complete(usage)

    def chunks(self, piece: Piece) -> list[object]:
        chunks: list[Fields] = []
        if self._sequence == 0:
            begun = {**self._base, "status": "in_progress", "output": [], **_NOTHING_YET}
            chunks += [self._numbered("response.created", response=begun)]
            chunks += [self._numbered("response.in_progress", response=begun)]
        changes = self._reply.feed(piece.events)
        news = self._take_logprobs(piece)
        if piece.end is not None:
            self._end = piece.end
            changes += self._reply.close()
        chunks += [chunk for change in changes for chunk in self._of_change(change, news)]
        return list(chunks)

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        response = self._complete(usage)
        return [self._numbered(f"response.{response['status']}", response=response)]

    def _complete(self, usage: UsageInfo) -> Fields:
        cut = self._is_cut()
        response = {
            **self._base,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self._item(block, self._status(block)) for block in self._reply.blocks],
            "usage": _usage(usage),
        }
        self._on_complete(response)
        return response

    def _is_cut(self) -> bool:
        assert self._end is not None, "a reply that ends well has an end"
        return self._end.reason == "length"

    def _status(self, block: ReplyBlock) -> str:
        """Of a reply that was cut off, its last item is what is not complete."""
        is_last = block is self._reply.blocks[-1]
        return "incomplete" if is_last and self._end is not None and self._is_cut() else "completed"

    def _take_logprobs(self, piece: Piece) -> list[TokenLogprob]:
        """Book what has come to the message that it is a part of, once text shows which that is. Those of calls and
        reasoning have no place here."""
        if self._tokenizer is None:
            return []
        self._held += chat_logprobs(piece.logprobs, self._tokenizer).content
        if not piece.events and piece.end is None:
            return []
        news, self._held = self._held, []
        blocks = self._reply.blocks
        if not blocks or blocks[-1].kind != "text":
            return []
        self._logprobs.setdefault(blocks[-1].index, []).extend(news)
        return news

    def _of_change(self, change: Change, news: Sequence[TokenLogprob]) -> Iterator[Fields]:
        """`news`: logarithms that came with the text that has grown."""
        block = change.block
        known = self._logprobs.get(block.index, [])
        item_id, index = self._ids.of(block), block.index
        place = {"item_id": item_id, "output_index": index}
        within = place if block.kind == "call" else {**place, "content_index": 0}
        match change:
            case Opened():
                item = self._item(block, "in_progress")
                yield self._numbered("response.output_item.added", output_index=index, item=item)
                if block.kind != "call":
                    part = empty_part(block)
                    yield self._numbered("response.content_part.added", **within, part=part)
            case Grown(_, text):
                yield self._numbered(
                    f"{_STREAMS[block.kind]}.delta", **within, delta=text, **_extra(block, news)
                )
            case Closed():
                whole = {"arguments": block.text or "{}"} if block.kind == "call" else {"text": block.text}
                yield self._numbered(
                    f"{_STREAMS[block.kind]}.done", **within, **whole, **_extra(block, known)
                )
                if block.kind != "call":
                    yield self._numbered(
                        "response.content_part.done", **within, part=output_part(block, known)
                    )
                item = self._item(block, self._status(block))
                yield self._numbered("response.output_item.done", output_index=index, item=item)

    def _item(self, block: ReplyBlock, status: str) -> Fields:
        return output_item(block, self._ids.of(block), status, self._logprobs.get(block.index, ()))

    def _numbered(self, kind: str, **fields: Any) -> Fields:
        number = self._sequence
        self._sequence += 1
        return {"type": kind, "sequence_number": number, **fields}

    def _failure(self, error: ApiError) -> bytes:
        known = {"code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + msgspec.json.encode(self._numbered("error", **known)) + b"\n\n"


_STREAMS = {
    "reasoning": "response.reasoning_text",
    "text": "response.output_text",
    "call": "response.function_call_arguments",
}
_NOTHING_YET: Fields = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}


def _extra(block: ReplyBlock, logprobs: Sequence[TokenLogprob]) -> Fields:
    """What the events of one kind have beside the others."""
    match block.kind:
        case "text":
            return {"logprobs": list(logprobs)}
        case "reasoning" | "call":
            return {}


def _usage(usage: UsageInfo) -> Fields:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
