"""Recorded conversations and request logs as calls: whole runs, ShareGPT, OpenAI requests."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deeproot.bench.cachesim.call import Call
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, RoughTokenizer
from deeproot.runtime.context.openai_messages import (
    LogImportError,
    check_message,
    content_text,
    export_messages,
)
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.request_log import LoggedRequest
from deeproot.runtime.context.spans import ChatMessage, Part
from deeproot.runtime.context.swe_agent import import_trajectory
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer, Tokenised
from deeproot.runtime.context.tokenizer import Tokenizer

GAP_S = 20.0
"""Seconds between a session's calls where a record does not say."""
_SHAREGPT_ROLES = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "tool": "tool",
}


class Renderer:
    """Messages to tokens. None: four characters a token, and a plain template."""

    def __init__(self, tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None) -> None:
        self._tokens = SegmentTokenizer(tokenizer or RoughTokenizer())
        self._template = template or ChatTemplate(PLAIN_TEMPLATE)

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        session: str,
        *,
        start_s: float = 0.0,
        gap_s: float = GAP_S,
    ) -> list[Call]:
        """One call for each of the model's messages that follows another message, with that message as its answer."""
        made: list[Call] = []
        parts = _parts(messages)
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or i == 0:
                continue
            asked = self._render(parts[:i], (), ask=True)
            told = self._render(parts[: i + 1], (), ask=False).token_ids
            size = asked.token_ids.size
            # The answer as it comes back in later prompts, where at most the token at the joint is another one; a
            # template that rewrites history leaves its bare text.
            follows = told.size > size and common_prefix(told, asked.token_ids) >= size - 1
            answer = told[size:] if follows else self._tokens.encode(parts[i].content, model_written=True)
            made.append(_call(session, start_s + len(made) * gap_s, asked, answer))
        return made

    def request(self, logged: LoggedRequest, number: int, gap_s: float = GAP_S) -> Call:
        """A logged request, `number` of its log. What was answered is not in such logs."""
        asked = self._render(_parts(logged.messages), logged.tools, ask=True)
        return _call(logged.session or "", number * gap_s, asked, asked.token_ids[:0])

    def _render(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], *, ask: bool
    ) -> Tokenised:
        spans = self._template.render(messages, tools=tools, tools_segment="tools", add_generation_prompt=ask)
        written = {i for i, message in enumerate(messages) if message.role == "assistant"}
        return self._tokens.join(spans, written)


def sharegpt(document: Any, where: str) -> list[dict[str, Any]]:
    """Messages of one ShareGPT conversation. Raises `LogImportError` naming the field that is wrong."""
    turns = document.get("conversations") if isinstance(document, Mapping) else None
    if not isinstance(turns, list):
        raise LogImportError(f"{where}.conversations is missing or no list; give ShareGPT conversations")
    made = []
    for i, turn in enumerate(turns):
        if not isinstance(turn, Mapping) or turn.get("from") not in _SHAREGPT_ROLES:
            raise LogImportError(
                f"{where}.conversations[{i}].from is not one of {', '.join(_SHAREGPT_ROLES)}"
            )
        if not isinstance(turn.get("value"), str):
            raise LogImportError(f"{where}.conversations[{i}].value is no string")
        made.append({"role": _SHAREGPT_ROLES[turn["from"]], "content": turn["value"]})
    return made


def trajectory(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Messages of a SWE-agent trajectory. Raises `LogImportError`."""
    with EventLog.memory() as log:
        import_trajectory(log, document)
        return export_messages(log)


def read_documents(lines: Iterable[str]) -> list[Any]:
    """A JSON list, one JSON document, or one a line. Raises `LogImportError` naming the line."""
    text = "".join(lines)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [_document(line, n) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    return whole if isinstance(whole, list) else [whole]


def _document(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise LogImportError(f"line {number}: not JSON ({error})") from None


def _parts(messages: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    made = []
    for i, message in enumerate(messages):
        check_message(message, f"messages[{i}]")
        text, _ = content_text(message.get("content"), f"messages[{i}]")
        fields = {key: value for key, value in message.items() if key not in ("role", "content")}
        made.append(ChatMessage(str(message.get("role", "")), (Part(text, i),), fields))
    return made


def _call(session: str, time_s: float, asked: Tokenised, answer: Any) -> Call:
    # Not the words that ask the model to speak: a hosted API adds them behind what a caller can mark.
    ends = sorted({boundary.end for boundary in asked.boundaries if boundary.segment is not None})
    return Call(session, time_s, asked.token_ids, answer, tuple(ends), usual_marks(ends))


def usual_marks(ends: Sequence[int]) -> tuple[int, ...]:
    """Breakpoints as agents set them: behind the first part (tools or system message) and behind the newest."""
    return tuple(sorted({ends[0], ends[-1]})) if ends else ()
