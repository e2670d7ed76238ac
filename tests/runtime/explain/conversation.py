"""A client, a server's text side and an engine with a perfect cache, for tests of what is said of a miss."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from deeproot.engine.radix_node import common_tokens
from deeproot.runtime.chat.continuation import ChatContinuation
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import reply_format
from deeproot.runtime.chat.reply_memory import ReplyMemory
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Int32Array, Tokenizer
from deeproot.runtime.explain.explainer import Explainer
from deeproot.runtime.explain.history import Chat, Tenant
from deeproot.runtime.explain.report import Explanation
from deeproot.scheduler.messages import Usage

TEMPLATES = Path(__file__).parents[1] / "chat" / "templates"
Message = dict[str, Any]
NOBODY = Tenant()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def tool(name: str, **properties: Any) -> Message:
    parameters = {"type": "object", "properties": properties}
    described = {"name": name, "description": f"Does what {name} does.", "parameters": parameters}
    return {"type": "function", "function": described}


class Talk:
    """Calls are answered with given words. The cache holds everything ever computed, but for what a test evicts."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str = "chatml",
        *,
        memory: int = 0,
        now: datetime = datetime(2026, 3, 5),
        max_bytes: int = 10**7,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate(
            (TEMPLATES / f"{template}.jinja").read_text(), tokenizer, now=lambda: self.now
        )
        self.now = now
        self.explainer = Explainer(tokenizer, self.template, max_bytes)
        self.continuation = ChatContinuation(
            self.template, tokenizer, ReplyMemory(memory), reply_format(self.template), PieceMemory(memory)
        )
        self.computed: list[tuple[bytes, bytes]] = []
        self.calls = 0
        self.restarts = 0

    def call(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        reply: str | list[int] = "Yes.",
        cached: int | None = None,
        since: str | None = None,
        tenant: Tenant = NOBODY,
        exact: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        **usage: int,
    ) -> Explanation:
        """One request. cached: what the engine still has, if not everything; usage: what else it reports."""
        chat = Chat(messages, tools, kwargs or {})
        rendering = self.template.rendering(messages, tools, **(kwargs or {}))
        prompt = self.continuation.prompt(rendering, exact=exact)
        words = (
            self.tokenizer.encode(reply, parse_special=False).tolist() if isinstance(reply, str) else reply
        )
        end = self.tokenizer.id_of("<|im_end|>")
        assert end is not None
        explanation = self.run(prompt.token_ids, chat, [*words, end], cached, since, tenant, usage)
        self.continuation.remember(prompt, [*words, end])
        return explanation

    def complete(self, text: str, reply: str = " Yes.") -> Explanation:
        """A plain prompt."""
        ids = self.tokenizer.encode(text, parse_special=True)
        words = self.tokenizer.encode(reply, parse_special=False).tolist()
        return self.run(ids, None, words, None, None, NOBODY, {})

    def run(
        self,
        ids: Int32Array,
        chat: Chat | None,
        output: list[int],
        cached: int | None,
        since: str | None,
        tenant: Tenant,
        usage: Mapping[str, int],
    ) -> Explanation:
        self.calls += 1
        pending = self.explainer.begin(f"call-{self.calls}", tenant, ids, chat, self.restarts, since)
        data = ids.tobytes()
        mine = [past for name, past in self.computed if name == tenant.namespace]
        has = max((common_tokens(past, data) for past in mine), default=0)
        has = min(has, len(ids) - 1) if cached is None else cached
        said = Usage(prompt=len(ids), cached=has, computed=len(ids) - has, output=len(output), **usage)
        self.explainer.computed(pending, said, output)
        self.computed.append((tenant.namespace, data + np.array(output[:-1], dtype=np.int32).tobytes()))
        explanation = self.explainer.explain(pending, said)
        check(explanation, said)
        return explanation


def check(explanation: Explanation, usage: Usage) -> None:
    """What must hold for every explanation."""
    missed = sum(miss.tokens for miss in explanation.misses if miss.cause != "preempted")
    assert explanation.matched_tokens + missed == explanation.prompt_tokens - 1
    assert (
        explanation.matched_tokens == usage.cached <= explanation.ceiling_tokens < explanation.prompt_tokens
    )
    assert all(miss.tokens > 0 for miss in explanation.misses)
    assert explanation.cause == (explanation.misses[0].cause if explanation.misses else None)


RULES = "You help people to plan their travels. Be brief and polite, and never invent a train."
PROFILE = "The user's name is Ann. She likes mountains, cheap hotels and long breakfasts in the sun."
ASK, ANSWER, MORE = (
    user("Where shall I go this summer?"),
    "To the mountains, I would say.",
    user("Which ones?"),
)
TALK: list[Message] = [ASK, assistant(ANSWER), MORE]
TOOLS = [tool("find_trains", place={"type": "string"}), tool("book"), tool("weather", day={"type": "string"})]
