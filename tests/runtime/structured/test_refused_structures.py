"""What cannot be enforced is refused, and named."""

from dataclasses import replace
from typing import Any

import pytest

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.options import StructuredOutputs
from deeproot.runtime.structured.output_grammar import ToolUse
from deeproot.runtime.structured.schemas import MAX_SCHEMA_BYTES

from .grammars import GRAMMARS, TOOLS, use

_BAD_STRUCTURES: list[tuple[dict[str, Any], str]] = [
    (
        {"json": {"properties": {"a": {"items": {"type": "strin"}}}}},
        "f.properties.a.items cannot be enforced: Invalid",
    ),
    (
        {"json": {"properties": {"a": {"uniqueItems": True}}}},
        "f.properties.a cannot be enforced: Unimplemented keys",
    ),
    (
        {"json": {"anyOf": [{"type": "string", "pattern": "("}]}},
        "f.anyOf[0] cannot be enforced: regex parse error: unclosed",
    ),
    ({"json": {"$ref": "#/$defs/x"}}, "does not exist"),
    ({"json": {"$ref": "http://127.0.0.1/x"}}, "cannot be enforced"),
    (
        {"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "oneOf with alternatives that may overlap",
    ),
    ({"json": {"enum": []}}, "Unsatisfiable"),
    ({"json": False}, "Unsatisfiable"),
    ({"json": {"const": "\ud800"}}, "cannot be enforced"),
    ({"json": {"x": "y" * MAX_SCHEMA_BYTES}}, f"at most {MAX_SCHEMA_BYTES} are taken"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-around"),
    ({"regex": "a" * 40_000}, "more than 32768 characters"),
    ({"regex": "\ud800"}, "surrogate"),
    ({"grammar": "\ud800"}, "surrogate"),
    ({"choice": ("\ud800",)}, "cannot be enforced"),
    ({"choice": ()}, "1 to 4096 texts"),
    ({"choice": ("a", "")}, "empty text"),
    ({"grammar": "nonsense"}, "cannot be enforced"),
    ({"grammar": "root ::= missing"}, "cannot be read as GBNF"),
]


@pytest.mark.parametrize(("given_structure", "words"), _BAD_STRUCTURES)
def test_what_cannot_be_enforced_is_named(given_structure: dict[str, Any], words: str) -> None:
    for _ in range(2):  # the second time from memory
        with pytest.raises(OptionError) as caught:
            GRAMMARS.make(StructuredOutputs(**given_structure), structure_field="f")
        assert caught.value.field == "f"
        assert words in str(caught.value)


def test_exactly_one_form() -> None:
    for given_structure in ({}, {"json_object": False}, {"regex": "a", "choice": ("b",)}):
        with pytest.raises(OptionError, match="exactly one of"):
            StructuredOutputs(**given_structure)  # type: ignore[arg-type]


def test_a_bad_tool_is_named() -> None:
    tools = [
        *TOOLS,
        {"type": "function", "function": {"name": "x", "parameters": {"properties": {"a": {"not": {}}}}}},
    ]
    with pytest.raises(OptionError) as caught:
        GRAMMARS.make(tools=ToolUse(tools, "required"))
    assert caught.value.field == "tools[3].function.parameters"
    assert "tools[3].function.parameters.properties.a cannot" in str(caught.value)
    assert GRAMMARS.make(tools=ToolUse(tools, "auto")) is None


@pytest.mark.parametrize("choice", ["any", {"type": "function", "function": {}}, {"type": "tool"}, {}])
def test_strange_tool_choices(choice: Any) -> None:
    with pytest.raises(OptionError) as caught:
        GRAMMARS.make(tools=use(choice))
    assert caught.value.field == "tool_choice"


def test_tool_choices_that_no_tool_fits() -> None:
    for wish in (use({"type": "function", "function": {"name": "pong"}}), replace(use("required"), tools=[])):
        with pytest.raises(OptionError) as caught:
            GRAMMARS.make(tools=wish)
        assert caught.value.field == "tool_choice"
