"""Strings that stand in a text as they are, without JSON's quotes, and what may stand in their place."""

import json
import re
from collections.abc import Iterator
from typing import Any

from deeproot.runtime.chat.formats.argument_values import kind_of
from deeproot.runtime.structured.argument_schema import cannot_enforce
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.schemas import Path

_RULES_OF_KINDS = ("type", "const", "enum")
_NOT_FOR_STRINGS = ("$ref", "allOf", "anyOf", "oneOf", "not", "if")
_DEFINITIONS = ("$defs", "definitions")
_PATTERN_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""An escape, a class of characters, or a character."""
_FLAGS = re.compile(r"\(\?[a-zA-Z-]+\)")

_DATE = r"[0-9]{4}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": r"P([0-9]+W|[0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?"
    r"|([0-9]+D)?T([0-9]+S|[0-9]+M([0-9]+S)?|[0-9]+H([0-9]+M([0-9]+S)?)?))",
    "email": rf"[a-zA-Z0-9_%+-]+(\.[a-zA-Z0-9_%+-]+)*@{_LABEL}(\.{_LABEL})+",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": r"[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){7}|([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,2})?::"
    r"([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,3})?",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:(//[a-zA-Z0-9.-]+(:[0-9]{1,5})?)?(/[a-zA-Z0-9._~!$&'()*+,;=:@-]*)*"
    r"(\?[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?(#[a-zA-Z0-9._~!$&'()*+,;=:@/?-]*)?",
}
"""The formats of `schemas.checked_schema`: texts that all have them, if not all such texts (RFC 3339, 1123, 4291, 4122,
3986)."""


def kinds_apart(
    schema: dict[str, Any], place: Path, field: str
) -> Iterator[tuple[str, dict[str, Any], Path]]:
    """Alternatives that together are `schema`, whose kinds are known: the kind of each, itself and its place.

    Raises OptionError where they cannot be told apart.
    """
    key = next((key for key in ("anyOf", "oneOf") if key in schema), None)
    if key is not None and not any(rule in schema for rule in _RULES_OF_KINDS):
        shared = {name: schema[name] for name in _DEFINITIONS if name in schema}
        for i, option in enumerate(schema[key]):
            yield from kinds_apart({**shared, **option}, (*place, key, i), field)
        return
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    declared = schema.get("type", sorted(set(map(kind_of, values or ()))))
    for kind in [declared] if isinstance(declared, str) else declared:
        one = {name: rule for name, rule in schema.items() if name not in _RULES_OF_KINDS}
        if values is not None:
            one["enum"] = [value for value in values if _is_of(value, kind)]
        if values is None or one["enum"]:
            yield kind, {**one, "type": kind}, place


def string_terminal(
    grammar: GrammarText, schema: dict[str, Any], without: str, place: Path, field: str
) -> str:
    """An expression for terminals: the strings by a schema of nothing else, none of which contains `without`.

    Raises OptionError for rules that have no such form.
    """
    for key in _NOT_FOR_STRINGS:
        if key in schema:
            why = "calls of this model write strings without quotes, and this cannot be told of such a text"
            raise cannot_enforce(field, (*place, key), why)
    rules = [texts_without(grammar, without)]
    if "enum" in schema:
        if any(without in value for value in schema["enum"]):
            raise cannot_enforce(field, place, f"calls of this model cannot spell {without!r} in a value")
        rules.append("(" + " | ".join(json.dumps(value) for value in schema["enum"]) + ")")
    if "minLength" in schema or "maxLength" in schema:
        rules.append(f"/(?s:.){{{int(schema.get('minLength', 0))},{_number(schema.get('maxLength'))}}}/")
    if "pattern" in schema:
        rules.append(grammar.regex(_whole(schema["pattern"], (*place, "pattern"), field), ascii_classes="dw"))
    if "format" in schema:
        rules.append(grammar.regex(f"(?:{_FORMATS[schema['format']]})"))
    return "(" + " & ".join(rules) + ")"


def texts_without(grammar: GrammarText, mark: str) -> str:
    """A terminal's expression: any text that `mark` does not stand in."""
    # What is not a text with the mark may also be no UTF-8.
    return f"/(?s:.*)/ & ~{grammar.regex(f'(?s:.*){re.escape(mark)}(?s:.*)')}"


def _whole(pattern: str, place: Path, field: str) -> str:
    """A pattern of whole texts in which `pattern`, which may have anchors at its ends, is found."""
    depth = 0
    alternatives: list[list[str]] = [[]]
    for part in _PATTERN_PARTS.findall(pattern):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(part)
    found = []
    for parts in alternatives:
        starts, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
        body = parts[starts : len(parts) - ends]
        if "^" in body or "$" in body or _FLAGS.search(pattern):
            why = "calls of this model write strings without quotes, whose patterns may have ^ and $ at their ends only"
            raise cannot_enforce(field, place, f"{why}, and no flags")
        any_text = "(?s:.*)"
        found.append(f"{'' if starts else any_text}(?:{''.join(body)}){'' if ends else any_text}")
    return f"(?:{'|'.join(found)})"


def _is_of(value: Any, kind: str) -> bool:
    return kind_of(value) == kind or (kind == "number" and kind_of(value) == "integer")


def _number(bound: float | None) -> str:
    return "" if bound is None else str(int(bound))
