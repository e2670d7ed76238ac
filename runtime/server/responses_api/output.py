"""The items of a reply, as the Responses API writes them."""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from deeproot.runtime.server.reply_blocks import ReplyBlock

Fields = dict[str, Any]

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


class ItemIds:
    """Gives each block of a reply an id, the same whenever it is asked."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}

    def of(self, block: ReplyBlock) -> str:
        return self._ids.setdefault(block.index, new_item_id(_PREFIXES[block.kind]))


def new_item_id(prefix: str) -> str:
    """`msg_…`"""
    return f"{prefix}_{uuid4().hex}"


def output_item(block: ReplyBlock, item_id: str, status: str, logprobs: Sequence[object] = ()) -> Fields:
    """`status`: `in_progress`, where text and arguments are still empty, `completed` or `incomplete`."""
    begun = status != "in_progress"
    match block.kind:
        case "reasoning":
            content = [output_part(block)] if begun else []
            return {
                "id": item_id,
                "type": "reasoning",
                "summary": [],
                "content": content,
                "encrypted_content": None,
                "status": status,
            }
        case "text":
            content = [output_part(block, logprobs)] if begun else []
            return {
                "id": item_id,
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }
        case "call":
            return {
                "id": item_id,
                "type": "function_call",
                "call_id": block.call_id,
                "name": block.name,
                "arguments": (block.text or "{}") if begun else "",
                "status": status,
            }


def output_part(block: ReplyBlock, logprobs: Sequence[object] = ()) -> Fields:
    """The only part of a message or of reasoning."""
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": list(logprobs)}


def empty_part(block: ReplyBlock) -> Fields:
    """The same before anything of it is known."""
    return {**output_part(block), "text": ""}
