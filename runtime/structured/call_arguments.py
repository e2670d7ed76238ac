"""Grammars of the arguments of a call, in the ways in which formats write them."""

from deeproot.runtime.chat.formats.tool_format import Plain, Tagged
from deeproot.runtime.structured.argument_schema import arguments_of
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema
from deeproot.runtime.structured.python_arguments import add_python_arguments
from deeproot.runtime.structured.tagged_arguments import TaggedArguments


def add_arguments(
    grammar: GrammarText, way: Plain | Tagged, rule: str, schema: JsonSchema, field: str
) -> str:
    """Add what arguments by `schema` need, in rules whose names start with `rule`; returns the expression.

    Raises OptionError, which names `field`, for what cannot be enforced in this way of writing.
    """
    if way is Plain.JSON:
        return grammar.json(schema)
    arguments = arguments_of(schema, field)
    if isinstance(way, Tagged):
        return TaggedArguments(grammar, way, rule, field).add(arguments)
    return add_python_arguments(grammar, rule, arguments, field)
