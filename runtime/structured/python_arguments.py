"""Grammars of arguments in Python: `key=value, …`."""

import keyword
import unicodedata

from deeproot.runtime.structured.argument_schema import Arguments, cannot_enforce
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema


def add_python_arguments(grammar: GrammarText, rule: str, arguments: Arguments, field: str) -> str:
    """Add what they need, in rules whose names start with `rule`; returns the expression for all of them.

    Values are JSON, all of which the reader understands; flags may have Python's words. Raises OptionError for names
    that Python does not have.
    """
    for argument in arguments.listed:
        if not _is_name(argument.name):
            why = "calls of this model name arguments by Python's identifiers"
            raise cannot_enforce(field, argument.place, why)
    comma, extra = grammar.literal(", "), ""
    if arguments.extra is not None:
        others = " | ".join(map(grammar.literal, (*keyword.kwlist, *arguments.names)))
        key = grammar.rule(f"{rule}_key".upper(), f'(/[a-zA-Z_][a-zA-Z0-9_]*/ & ~({others})) "="')
        extra = f"{key} {_value(grammar, arguments.extra)}"
    # From the last to the first: what may come once something is written, and what while nothing is.
    later, first = (f"({comma} {extra})*", f"({extra} ({comma} {extra})*)?") if extra else ('""', '""')
    for i, argument in reversed(list(enumerate(arguments.listed))):
        item = f"{grammar.literal(f'{argument.name}=')} {_value(grammar, argument.schema)}"
        value = grammar.rule(f"{rule}_value_{i}", item)
        rest = grammar.rule(f"{rule}_rest_{i}", later)
        skipped = grammar.rule(f"{rule}_skipped_{i}", first)
        later, first = f"{comma} {value} {rest}", f"{value} {rest}"
        if not argument.required:
            later, first = f"{later} | {rest}", f"{first} | {skipped}"
    return first


def _is_name(name: str) -> bool:
    # Python takes letters that are compatible for the same.
    is_same = unicodedata.normalize("NFKC", name) == name
    return name.isidentifier() and not keyword.iskeyword(name) and is_same


def _value(grammar: GrammarText, schema: JsonSchema) -> str:
    if isinstance(schema, dict) and schema.get("type") == "boolean" and not schema.keys() & {"enum", "const"}:
        return '("True" | "False" | "true" | "false")'
    return grammar.json(schema)
