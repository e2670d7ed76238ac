"""Grammars of tool calls, made of what `CallForm` says about each format."""

import json
from dataclasses import dataclass
from typing import Literal

from deeproot.runtime.chat.formats.tool_format import CallForm, Slot, ToolFormat
from deeproot.runtime.structured.call_arguments import add_arguments
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema


@dataclass(frozen=True, slots=True)
class CallTool:
    """A function that the output may call."""

    name: str
    schema: JsonSchema
    """Of its arguments."""
    field: str
    """What errors about it call it."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that an output may have, or must."""

    format: ToolFormat
    tools: tuple[CallTool, ...]
    """At least one."""
    mode: Literal["auto", "required"]
    """auto: text, calls, or calls after text."""
    several: bool = True


def add_calls(grammar: GrammarText, calls: Calls) -> str:
    """Add a run of calls, one or more; returns the rule's name."""
    form, call = calls.format.form, _add_call(grammar, calls)
    run = _sequence(grammar.literal(form.begin), call, _more(grammar, calls, call), grammar.literal(form.end))
    return grammar.rule("calls", run)


def add_text_or_calls(grammar: GrammarText, calls: Calls) -> str:
    """Add text, or calls with or without text before them; returns the rule's name.

    From the mark on nothing but a call of one of the tools can come.
    """
    form, call = calls.format.form, _add_call(grammar, calls)
    more, end = _more(grammar, calls, call), grammar.literal(form.end)
    opening = _opening(calls.format)
    if not opening:
        first = "".join(f"\\x{{{ord(letter):x}}}" for letter in calls.format.start_letters)
        text = f"/([^{first}](?s:.*))?/"
        return grammar.rule(
            "text_or_calls", f"{text} | {_sequence(grammar.literal(form.begin), call, more, end)}"
        )
    begin, first_call = form.begin.removeprefix(opening), call
    if not form.begin:
        first_call = _add_call(grammar, calls, without=opening)
    run = _sequence(grammar.up_to("to_calls", opening), grammar.literal(begin), first_call, more, end)
    return grammar.rule("text_or_calls", f"{grammar.any_text()} | {run}")


def _opening(format: ToolFormat) -> str:
    """The mark with which the calls of a format begin as the model writes them; empty if there is none."""
    first = format.form.begin or next(part for part in format.form.call if isinstance(part, str))
    return next((opening for opening in format.openings if first.startswith(opening)), "")


def _more(grammar: GrammarText, calls: Calls, call: str) -> str:
    return f"({_sequence(grammar.literal(calls.format.form.separator), call)})*" if calls.several else ""


def _add_call(grammar: GrammarText, calls: Calls, without: str = "") -> str:
    """Add a call of any of the tools, its first text cut by `without`; returns the rule's name."""
    form = calls.format.form
    each = [_call_of(grammar, form, tool, f"arguments_{i}", without) for i, tool in enumerate(calls.tools)]
    return grammar.rule("call_behind_mark" if without else "call", " | ".join(each))


def _call_of(grammar: GrammarText, form: CallForm, tool: CallTool, rule: str, without: str) -> str:
    parts: list[str] = []
    text, cut = "", without
    for part in form.call:
        match part:
            case Slot.NAME:
                text += tool.name
                continue
            case Slot.NAME_AS_JSON:
                text += json.dumps(tool.name, ensure_ascii=False)
                continue
            case str():
                text += part.removeprefix(cut)
                cut = ""
                continue
            case Slot.INDEX:
                found = "/[0-9]{1,3}/"
            case Slot.CALL_ID:
                found = "/[a-zA-Z0-9]{9}/"
            case Slot.ARGUMENTS:
                found = rule
                if not grammar.has(rule):
                    grammar.rule(rule, add_arguments(grammar, form.arguments, rule, tool.schema, tool.field))
        parts += [grammar.literal(text), found]
        text = ""
    parts.append(grammar.literal(text))
    return _sequence(*parts)


def _sequence(*expressions: str) -> str:
    return " ".join(expression for expression in expressions if expression)
