"""Replies as Anthropic's Messages API writes them, whole and as a stream of named events."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from deeproot.runtime.output_text import OutputEnd
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.messages_api.errors import error_body
from deeproot.runtime.server.reply_blocks import (
    Change,
    Closed,
    Grown,
    Opened,
    ReplyBlock,
    ReplyBlocks,
    blocks_of,
)
from deeproot.runtime.server.responses import AppliedEdit, UsageInfo
from deeproot.runtime.server.sse import Framing, named_event

Fields = dict[str, Any]

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def _event(content: object) -> bytes:
    assert isinstance(content, dict)
    return named_event(content["type"], content)


def _failure(error: ApiError) -> bytes:
    return b"event: error\ndata: " + error_body(error) + b"\n\n"


class MessagesShape:
    """See `answers.Shape`. Keeps how far a stream has come."""

    framing = Framing(_event, _failure, b"")

    def __init__(
        self, message_id: str, model: str, num_prompt: int, applied_edits: Sequence[AppliedEdit] | None = None
    ) -> None:
        """`num_prompt`: tokens of the prompt, which a stream says before it is known how many were cached.
        `applied_edits`: see `Job`."""
        edits = None if applied_edits is None else {"applied_edits": applied_edits}
        self._edits: Fields = {} if edits is None else {"context_management": edits}
        self._id = message_id
        self._model = model
        self._num_prompt = num_prompt
        self._begun = False
        self._blocks = ReplyBlocks()
        self._end: OutputEnd | None = None

    def whole(self, pieces: Sequence[Piece], usage: UsageInfo) -> Fields:
        blocks = blocks_of(event for piece in pieces for event in piece.events)
        end = pieces[-1].end
        assert end is not None, "an answer's last piece has its end"
        message = self._message([_block(block) for block in blocks])
        return {**message, **_stop(end), "usage": _usage(usage), **self._edits}

    def chunks(self, piece: Piece) -> list[object]:
        chunks: list[object] = []
        if not self._begun:
            self._begun = True
            chunks += [{"type": "message_start", "message": self._beginning()}, {"type": "ping"}]
        changes = self._blocks.feed(piece.events)
        if piece.end is not None:
            self._end = piece.end
            changes += self._blocks.close()
        return chunks + [chunk for change in changes for chunk in _chunks(change)]

    def last_chunks(self, usage: UsageInfo, *, at_least_one: bool) -> list[object]:
        assert self._end is not None, "a stream that ends well has an end"
        return [
            {"type": "message_delta", "delta": _stop(self._end), "usage": _usage(usage), **self._edits},
            {"type": "message_stop"},
        ]

    def _beginning(self) -> Fields:
        usage = {"input_tokens": self._num_prompt, "output_tokens": 0}
        return {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}

    def _message(self, content: list[Fields]) -> Fields:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
        }


def _chunks(change: Change) -> list[Fields]:
    index = change.block.index
    match change:
        case Opened(block):
            return [{"type": "content_block_start", "index": index, "content_block": _opening(block)}]
        case Grown(block, text):
            return [{"type": "content_block_delta", "index": index, "delta": _delta(block, text)}]
        case Closed(block):
            stop = {"type": "content_block_stop", "index": index}
            if block.kind != "reasoning":
                return [stop]
            delta = {"type": "signature_delta", "signature": _signature(block.text)}
            return [{"type": "content_block_delta", "index": index, "delta": delta}, stop]


def _opening(block: ReplyBlock) -> Fields:
    match block.kind:
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "text":
            return {"type": "text", "text": ""}
        case "call":
            return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def _delta(block: ReplyBlock, text: str) -> Fields:
    match block.kind:
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "text":
            return {"type": "text_delta", "text": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}


def _block(block: ReplyBlock) -> Fields:
    opening = _opening(block)
    match block.kind:
        case "reasoning":
            return {**opening, "thinking": block.text, "signature": _signature(block.text)}
        case "text":
            return {**opening, "text": block.text}
        case "call":
            return {**opening, "input": json.loads(block.text or "{}")}


def _signature(thinking: str) -> str:
    """Clients keep thinking only with a signature; this one proves nothing, and nothing checks it."""
    return hashlib.blake2b(thinking.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _stop(end: OutputEnd) -> Fields:
    if end.stop_text is not None and end.reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_text}
    return {"stop_reason": _STOP_REASONS[end.reason], "stop_sequence": None}


def _usage(usage: UsageInfo) -> Fields:
    """Anthropic counts cached tokens beside `input_tokens`, not in it."""
    cached = usage.prompt_tokens_details.cached_tokens
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }
