"""A client and a model that talk, and what clients do to replies."""

import json
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.continuation import ChatContinuation, Prompt
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import reply_format
from deeproot.runtime.chat.reply_memory import ReplyMemory
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conversations import TOOLS
from .parsing import parse_reply
from .test_template_families import TEMPLATES

Message = dict[str, Any]
Change = Callable[[Message], Message]
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>'


def family(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), tokenizer)


def odd_ids(tokenizer: Tokenizer, text: str, seed: int) -> list[int]:
    """Ids of a text that its own encoding would seldom give: it is cut at random, and the parts encoded alone."""
    rng = random.Random(seed)
    ids: list[int] = []
    while text:
        size = rng.randint(1, 5)
        ids += tokenizer.encode(text[:size], parse_special=False).tolist()
        text = text[size:]
    return ids


class Talk:
    """A client and a model, of which only the sampling is left out."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, max_bytes: int = 10**6) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.continuation = ChatContinuation(
            template, tokenizer, ReplyMemory(max_bytes), reply_format(template), PieceMemory(10**6)
        )
        self.messages: list[Message] = []
        self.end = tokenizer.id_of("<|im_end|>")

    def ask(self, *added: Message, exact: bool = False) -> Prompt:
        self.messages += added
        return self.continuation.prompt(self.template.rendering(self.messages, TOOLS), exact=exact)

    def answer(self, prompt: Prompt, text: str, seed: int = 1, change: Change = lambda m: m) -> list[int]:
        """The model writes `text`, the client keeps a changed form of what it gets. Returns the sequence so far."""
        ids = odd_ids(self.tokenizer, text, seed)
        assert self.end is not None
        self.continuation.remember(prompt, [*ids, self.end])
        self.messages.append(change(received(text)))
        return [*prompt.token_ids.tolist(), *ids]

    def plain(self) -> list[int]:
        ids: list[int] = self.template.token_ids(self.messages, TOOLS).tolist()
        return ids


def received(text: str) -> Message:
    """What a client gets for the model's text."""
    answer = parse_reply(CallParser(HERMES), text)
    calls = [
        {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in answer.calls
    ]
    message: Message = {"role": "assistant", "content": answer.content or (None if calls else "")}
    return {**message, "tool_calls": calls} if calls else message


def trimmed(message: Message) -> Message:
    return {**message, "content": message["content"].rstrip() if message["content"] else message["content"]}


def reserialised(message: Message) -> Message:
    calls = [
        {**c, "function": {**c["function"], "arguments": _other_json(c["function"]["arguments"])}}
        for c in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _other_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def nulls_dropped(message: Message) -> Message:
    return {key: value for key, value in message.items() if value is not None}


USER, OTHER = {"role": "user", "content": "What is the weather?"}, {"role": "user", "content": "And there?"}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "21 degrees"}


PIECES = st.sampled_from(
    [
        "a",
        " the weather",
        "\n",
        "<|im_end|>",
        "<|im_start|>",
        "assistant\n",
        "é",
        "12",
        " ",
        "<think>",
        "</think>",
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)
