"""What a tool call looks like, format by format: `hermes_calls` and its like say it, `add_calls` writes the grammar."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema

CallMode = Literal["auto", "required"]


CallRule = Callable[[GrammarText, str, str, JsonSchema], str]
"""Adds what one call needs, given the grammar, a rule name of its own, the function's name and the schema of its
arguments; returns the expression. See `json_call`."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls: `mark begin call (between call)* end`, in the words of its template.

    Control tokens are spelt as in the vocabulary.
    """

    mark: str
    """What no text before a call holds. Empty if the format has none: then an answer that starts with a call is calls."""
    call: CallRule
    begin: str = ""
    between: str = ""
    """With the mark, if every call has one."""
    end: str = ""
    first_letters: str = ""
    """Where there is no mark: the letters with which a call may start, and text may not."""


@dataclass(frozen=True, slots=True)
class CallTool:
    """A function that the output may call."""

    name: str
    schema: JsonSchema
    """Of its arguments."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an output may have, or must."""

    format: CallFormat
    tools: tuple[CallTool, ...]
    """At least one."""
    mode: CallMode
    """auto: text, calls, or text and calls."""
    several: bool = True


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thinking that may come before the rest of an output."""

    open: str
    close: str
    begun: bool
    """Whether the prompt has written `open` already."""


def json_call(
    before_name: str, after_name: str, after_arguments: str, *, quote_name: bool = True
) -> CallRule:
    """Calls whose arguments are one JSON object: `before_name NAME after_name ARGUMENTS after_arguments`."""

    def call(grammar: GrammarText, rule: str, name: str, schema: JsonSchema) -> str:
        written = json.dumps(name, ensure_ascii=False) if quote_name else name
        opening = grammar.literal(f"{before_name}{written}{after_name}")
        arguments = grammar.rule(f"{rule}_arguments", grammar.json(schema))
        return f"{opening} {arguments} {grammar.literal(after_arguments)}"

    return call


def hermes_calls() -> CallFormat:
    """`<tool_call>` tags around one JSON object a call, as Hermes and Qwen write them."""
    return CallFormat(
        mark="<tool_call>",
        call=json_call('\n{"name": ', ', "arguments": ', "}\n</tool_call>"),
        between="\n<tool_call>",
    )


def add_calls(grammar: GrammarText, calls: Calls) -> str:
    """Add a run of calls, one or more; returns the rule's name."""
    return grammar.rule("calls", _sequence(grammar.literal(calls.format.mark), _after_mark(grammar, calls)))


def add_text_or_calls(grammar: GrammarText, calls: Calls) -> str:
    """Add text, or calls with or without text before them; returns the rule's name.

    From the mark on nothing but a call of one of the tools can come.
    """
    form = calls.format
    rest = _after_mark(grammar, calls)
    if form.mark:
        text, run = grammar.any_text(), _sequence(grammar.up_to("to_calls", form.mark), rest)
    else:
        first = "".join(f"\\x{{{ord(letter):x}}}" for letter in form.first_letters)
        text, run = f"/([^{first}](?s:.*))?/", rest
    return grammar.rule("text_or_calls", f"{text} | {run}")


def _after_mark(grammar: GrammarText, calls: Calls) -> str:
    form = calls.format
    each = [form.call(grammar, f"call_{i}", tool.name, tool.schema) for i, tool in enumerate(calls.tools)]
    call = grammar.rule("call", " | ".join(each))
    more = f"({_sequence(grammar.literal(form.between), call)})*" if calls.several else ""
    return _sequence(grammar.literal(form.begin), call, more, grammar.literal(form.end))


def _sequence(*expressions: str) -> str:
    return " ".join(expression for expression in expressions if expression)
