"""Grammars of the arguments of a call, in the ways in which formats write them."""

from deeproot.runtime.chat.formats.tool_format import Plain, Tagged
from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.grammar_text import GrammarText
from deeproot.runtime.structured.options import JsonSchema


def add_arguments(
    grammar: GrammarText, way: Plain | Tagged, rule: str, schema: JsonSchema, field: str
) -> str:
    """Add what arguments by `schema` need, in rules whose names start with `rule`; returns the expression.

    Raises OptionError, which names `field`, for what cannot be enforced in this way of writing.
    """
    if way is Plain.JSON:
        return grammar.json(schema)
    raise OptionError(field, f"{field} cannot be enforced: calls of this model are not written as JSON.")
