"""Under whichever name a form is asked for, it is the same form; several, and wrong ones, are named."""

from typing import Any

import pytest

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.body import parse_body
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.schemas import CompletionRequest
from deeproot.runtime.server.structure_fields import structure_of
from deeproot.runtime.structured.options import StructuredOutputs

_SCHEMA = {"type": "integer"}
_SCHEMA_TEXT = '{"type": "integer"}'


def body(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": "x", **fields})


@pytest.mark.parametrize(
    ("fields", "field", "wanted"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format", {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": _SCHEMA, "strict": True},
                }
            },
            "response_format.json_schema.schema",
            {"json": _SCHEMA},
        ),
        (
            {"response_format": {"type": "json_object", "schema": _SCHEMA}},
            "response_format.schema",
            {"json": _SCHEMA},
        ),
        ({"structured_outputs": {"json": _SCHEMA}}, "structured_outputs", {"json": _SCHEMA}),
        ({"structured_outputs": {"json": _SCHEMA_TEXT}}, "structured_outputs", {"json": _SCHEMA}),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs", {"json_object": True}),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", {"regex": "a"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs", {"choice": ("a", "b")}),
        ({"structured_outputs": {"grammar": "g"}}, "structured_outputs", {"grammar": "g"}),
        ({"guided_json": _SCHEMA_TEXT}, "guided_json", {"json": _SCHEMA}),
        ({"json_schema": _SCHEMA}, "json_schema", {"json": _SCHEMA}),
        ({"guided_regex": "a"}, "guided_regex", {"regex": "a"}),
        ({"regex": "a"}, "regex", {"regex": "a"}),
        ({"guided_choice": ["a"]}, "guided_choice", {"choice": ("a",)}),
        ({"choice": ["a"]}, "choice", {"choice": ("a",)}),
        ({"guided_grammar": "g"}, "guided_grammar", {"grammar": "g"}),
        ({"ebnf": "g"}, "ebnf", {"grammar": "g"}),
    ],
)
def test_every_name(fields: dict[str, Any], field: str, wanted: dict[str, Any]) -> None:
    assert structure_of(body(**fields)) == (field, StructuredOutputs(**wanted))


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None, "regex": None}]
)
def test_no_form(fields: dict[str, Any]) -> None:
    assert structure_of(body(**fields)) is None


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex", "response_format and regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "regex and choice"),
        ({"structured_outputs": {}}, "structured_outputs", "got none"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "needs the schema"),
        ({"guided_json": "{"}, "guided_json", "not JSON"),
        ({"guided_json": "3"}, "guided_json", "must be a JSON schema"),
        ({"guided_json": "[" * 100_000}, "guided_json", "not JSON"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        structure_of(body(**fields))
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('{"response_format": {"type": "yaml"}}', "response_format.type"),
        ('{"structured_outputs": {"choice": [1]}}', "structured_outputs.choice[0]"),
        ('{"guided_choice": "a"}', "guided_choice"),
    ],
)
def test_wrong_types_are_named(fields: str, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_body(CompletionRequest, fields.replace("{", '{"prompt": "x", ', 1).encode())
    assert caught.value.param == param
