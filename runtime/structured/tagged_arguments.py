"""Grammars of arguments that stand one by one between tags."""

import json
import re
from typing import Any

from deeproot.runtime.chat.formats.argument_values import kinds_of
from deeproot.runtime.chat.formats.tool_format import Tagged
from deeproot.runtime.structured.argument_schema import Arguments, cannot_enforce, says_nothing
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema
from deeproot.runtime.structured.raw_text import kinds_apart, string_terminal, texts_without
from deeproot.runtime.structured.schemas import Path
from deeproot.runtime.structured.without_mark import without_mark

_EDGE = r"[^\s\x00-\x1f\x7f-\xa0<>\"]"
_KEY = re.compile(rf"{_EDGE}([^<>\n\"]*{_EDGE})?")
_NUMBERS = {
    "integer": r"-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
}
_SCALARS = {"null": "null", "boolean": "true|false", **_NUMBERS}
"""JSON of a kind, as a pattern."""
_STARTS = {"integer": "0-9-", "number": "0-9-", "array": r"\[", "object": r"\{"}
"""With what JSON of a kind begins, as part of a character class."""


class TaggedArguments:
    """Adds the arguments of one tool to a grammar, in rules whose names start with `rule`."""

    def __init__(self, grammar: GrammarText, tags: Tagged, rule: str, field: str) -> None:
        self._grammar = grammar
        self._tags = tags
        self._rule = rule
        self._field = field
        self._mark = tags.after_value.strip()

    def add(self, arguments: Arguments) -> str:
        """The expression for all arguments. Raises OptionError for what cannot be enforced."""
        items = []
        for i, argument in enumerate(arguments.listed):
            if not _KEY.fullmatch(argument.name):
                why = "calls of this model cannot spell this name"
                raise cannot_enforce(self._field, argument.place, why)
            value = self._value(f"{self._rule}_value_{i}", argument.schema, argument.place)
            item = f"{self._head(self._grammar.literal(argument.name))} {value}"
            items.append(item if argument.required else f"({item})?")
        if arguments.extra is not None:
            items.append(f"({self._extra(arguments, arguments.extra)})*")
        return " ".join(items) or '""'

    def _extra(self, arguments: Arguments, schema: JsonSchema) -> str:
        names = " | ".join(map(json.dumps, arguments.names))
        key = self._grammar.regex(_KEY.pattern) + (f" & ~({names})" if names else "")
        terminal = self._grammar.rule(f"{self._rule}_key".upper(), key)
        value = self._value(f"{self._rule}_more", schema, ("additionalProperties",), listed=False)
        return f"{self._head(terminal)} {value}"

    def _head(self, key: str) -> str:
        # Not one text: where several keys are possible, which one it is shows after the tag.
        before, after = map(self._grammar.literal, (self._tags.before_key, self._tags.before_value))
        return f"{before} {key} {after}"

    def _value(self, rule: str, schema: JsonSchema, place: Path, listed: bool = True) -> str:
        """What stands between the tags, and the second of them. `listed`: whether the reader knows its schema."""
        if says_nothing(schema):
            return self._text(rule, texts_without(self._grammar, self._mark))
        kinds = kinds_of(schema) if listed else frozenset[str]()
        if isinstance(schema, bool) or "string" not in kinds:
            return self._json(schema, place)
        apart = list(kinds_apart(schema, place, self._field))
        irregular = [(kind, one, where) for kind, one, where in apart if _is_irregular(kind, one)]
        strings = [
            string_terminal(self._grammar, one, self._mark, where, self._field)
            for kind, one, where in apart
            if kind == "string"
        ]
        unlike = _unlike(kinds, {kind for kind, _, _ in irregular})
        terminals = [f"(({' | '.join(strings)}){unlike})"] if strings else []
        terminals += [
            _scalar(kind, one) for kind, one, _ in apart if kind != "string" and not _is_irregular(kind, one)
        ]
        texts = [self._text(rule, " | ".join(terminals))] if terminals else []
        others = [self._json(one, where) for _, one, where in irregular]
        return f"({' | '.join(texts + others)})"

    def _json(self, schema: JsonSchema, place: Path) -> str:
        bounded = without_mark(schema, self._mark, place, self._field)
        return f"{self._grammar.json(bounded)} {self._grammar.literal(self._tags.after_value)}"

    def _text(self, rule: str, terminal: str) -> str:
        return self._grammar.text_before(rule, terminal, self._tags.after_value, self._mark)


def _is_irregular(kind: str, schema: dict[str, Any]) -> bool:
    """Whether JSON by a schema of one kind, which is not string, can be no terminal."""
    if kind in _NUMBERS and "enum" not in schema:
        return not says_nothing({key: rule for key, rule in schema.items() if key != "type"})
    return kind in ("array", "object")


def _scalar(kind: str, schema: dict[str, Any]) -> str:
    """A terminal's expression: JSON by a schema of one kind that is not irregular."""
    if "enum" in schema:
        return " | ".join(json.dumps(json.dumps(value)) for value in schema["enum"])
    return f"/{_SCALARS[kind]}/"


def _unlike(kinds: frozenset[str], irregular: set[str]) -> str:
    """The part of a terminal's expression that rules out texts which are read as JSON of one of `kinds`.

    Those that are no terminals are told by how they begin: a lexer cannot go back.
    """
    by_start = irregular | (kinds & {"array", "object"})
    starts = "".join(sorted({_STARTS[kind] for kind in by_start}, reverse=True))
    parts = [rf"[ \t\r\n]*[{starts}](?s:.*)"] if starts else []
    whole = "|".join(_SCALARS[kind] for kind in sorted(kinds & _SCALARS.keys()))
    parts += [rf"[ \t\r\n]*({whole})[ \t\r\n]*"] if whole else []
    return "".join(f" & ~/{part}/" for part in parts)
