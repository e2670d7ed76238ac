"""Tools, and the grammars made of them over a small vocabulary."""

from collections.abc import Mapping
from typing import Any

from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reply_format import ReplyFormat
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammars, ToolUse

from .vocabulary import SPECIAL, make_backend

BACKEND = make_backend()
CONTROLS = {"<special>": SPECIAL}
REPLIES = ReplyFormat(HERMES, None)
GRAMMARS = OutputGrammars(CONTROLS, REPLIES)
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Lima"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city"],
    "additionalProperties": False,
}
SEND: dict[str, Any] = {
    "properties": {"to": {"type": "string", "pattern": "^[a-z]{1,4}@x$"}},
    "required": ["to"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "send", "parameters": SEND}},
    {"type": "function", "function": {"name": "ping"}},
]


def text_of(structure: StructuredOutputs | None = None, *, of: OutputGrammars = GRAMMARS, **said: Any) -> str:
    grammar = of.make(structure, **said)
    assert grammar is not None
    return grammar.text


def use(choice: str | Mapping[str, Any] | None, *, strict: bool = False, **said: Any) -> ToolUse:
    flag = {"strict": True} if strict else {}
    tools = [{**tool, "function": {**tool["function"], **flag}} for tool in TOOLS]
    return ToolUse(tools, choice, **said)
