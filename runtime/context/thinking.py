"""What becomes of a model's thinking: shown as its chat template says, or scratch that no later prompt holds."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.messages import REASONING_NAMES
from deeproot.runtime.context.spans import ChatMessage, Part
from deeproot.runtime.context.template import ChatTemplate

_OPEN, _CLOSE = "<think>", "</think>"
_THOUGHT = "pondered"
_CALL = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": "{}"}}


class Thinking(StrEnum):
    """How a working set treats the thinking in the log."""

    TEMPLATE = "template"
    """It is given to the template, which keeps or drops it."""
    SCRATCH = "scratch"
    """It is never staged: the model thinks on a branch, and only what it said and did goes on (two phases). The prefix then
    never changes whatever the template does; each action is computed once more, without the thought before it."""


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """What a template does. `in_loop`: earlier thinking is shown while calls are answered; `after_user`: also when a user
    message came after it."""

    in_loop: bool
    after_user: bool

    @property
    def host_words_in_results(self) -> bool:
        """Whether what the host says must stand in a tool's message, since a user's would end the loop and drop thinking."""
        return self.in_loop and not self.after_user


def thinking_rule(template: ChatTemplate) -> ThinkingRule:
    """Tries a template. One that refuses tool calls or shows no thinking keeps none."""
    return ThinkingRule(_shown(template, then_user=False), _shown(template, then_user=True))


def without_thinking(text: str) -> str:
    """A message's words without the thinking that it begins with."""
    end = text.find(_CLOSE)
    return text[end + len(_CLOSE) :].strip() if end > 0 and text.lstrip().startswith(_OPEN) else text


def has_thinking(text: str, fields: Mapping[str, Any]) -> bool:
    """Whether a message thinks, in its words or apart."""
    return without_thinking(text) != text or any(fields.get(name) for name in REASONING_NAMES)


def fields_without_thinking(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A message's fields but those that hold thinking."""
    return {name: value for name, value in fields.items() if name not in REASONING_NAMES}


def _shown(template: ChatTemplate, *, then_user: bool) -> bool:
    apart = ({"reasoning_content": _THOUGHT}, "")
    inside: tuple[dict[str, Any], str] = ({}, f"{_OPEN}\n{_THOUGHT}\n{_CLOSE}\n\n")
    return any(_rendered(template, fields, words, then_user) for fields, words in (apart, inside))


def _rendered(template: ChatTemplate, fields: Mapping[str, Any], words: str, then_user: bool) -> bool:
    chat = [
        ChatMessage("user", (Part("a", 0),), {}),
        ChatMessage("assistant", (Part(words, 1),), {**fields, "tool_calls": [_CALL]}),
        ChatMessage("tool", (Part("b", 2),), {"tool_call_id": _CALL["id"]}),
    ]
    if then_user:
        chat.append(ChatMessage("user", (Part("c", 3),), {}))
    try:
        return _THOUGHT in "".join(span.text for span in template.render(chat))
    except TemplateError:
        return False
