"""What is made of a schema before a grammar is made of it."""

from typing import Any

import pytest

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.schemas import MAX_SCHEMA_DEPTH, checked_schema


def test_schemas_too_deep_are_refused_before_anything_recurses() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"not": deep}
    with pytest.raises(OptionError, match=f"more than {MAX_SCHEMA_DEPTH} levels"):
        checked_schema(deep, "f")


def test_formats_that_say_nothing_are_dropped_and_properties_of_that_name_are_not() -> None:
    schema = {
        "properties": {
            "format": {"type": "integer", "format": "int64"},
            "at": {"type": "string", "format": "date"},
        },
        "anyOf": [{"format": "binary"}, {"required": ["format"]}],
        "x-guidance": {"lenient": True},
    }
    assert checked_schema({**schema, "minProperties": 0}, "f") == {
        "minProperties": 0,
        "properties": {"format": {"type": "integer"}, "at": {"type": "string", "format": "date"}},
        "anyOf": [{}, {"required": ["format"]}],
    }
    assert schema["anyOf"] == [{"format": "binary"}, {"required": ["format"]}]


def test_objects_have_the_properties_that_are_listed_unless_more_is_said() -> None:
    a: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
    closed = {**a, "additionalProperties": False}
    assert checked_schema({"items": a}, "f") == {"items": closed}
    assert checked_schema({"anyOf": [a, {"type": "object"}]}, "f") == {"anyOf": [closed, {"type": "object"}]}
    nested = {"properties": {"x": a, "properties": a}, "required": ["x"]}
    assert checked_schema(nested, "f") == {
        "properties": {"x": closed, "properties": closed},
        "required": ["x"],
        "additionalProperties": False,
    }
    for said in (
        {**a, "additionalProperties": True},
        {**a, "patternProperties": {"^x": {}}},
        {**a, "required": ["b"]},
        {"allOf": [a, {"properties": {"b": {}}}]},
        {"$defs": {"x": a}, "properties": {"b": {}}, "$ref": "#/$defs/x"},
        {"properties": {"b": {}}, "anyOf": [a, {"required": ["b"]}]},
        {"type": "object"},
    ):
        assert checked_schema(said, "f") == said
