"""The memories of one model's replies, for chats and plain prompts, under one bound."""

from dataclasses import dataclass

from deeproot.runtime.chat.continuation import ChatContinuation
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.chat.reply_memory import ReplyMemory
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.text_continuation import TextContinuation
from deeproot.runtime.chat.tokenizer import Tokenizer

_PIECE_BYTES = 2**24
"""Of tokenised pieces of prompts, beside the replies."""


@dataclass(frozen=True, slots=True)
class Continuations:
    chat: ChatContinuation | None
    """None: the model has no chat template."""
    text: TextContinuation


def make_continuations(
    tokenizer: Tokenizer, template: ChatTemplate | None, replies: ReplyFormat, max_bytes: int
) -> Continuations:
    """`max_bytes`: about what both may hold together of replies; 0 remembers nothing."""
    memory = ReplyMemory(max_bytes)
    pieces = PieceMemory(min(max_bytes, _PIECE_BYTES))
    chat = None if template is None else ChatContinuation(template, tokenizer, memory, replies, pieces)
    return Continuations(chat, TextContinuation(tokenizer, memory))
