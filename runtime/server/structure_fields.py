"""The form that a request wants its output to have, under the many names that clients know for it."""

import json
from typing import Any

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.server.schemas import GenerationRequest, ResponseFormat
from deeproot.runtime.structured.options import JsonSchema, StructuredOutputs
from deeproot.runtime.structured.output_grammar import OutputGrammar, OutputGrammars, ToolUse

Found = tuple[str, StructuredOutputs]
"""Name of the field that says it, and what it says."""


def structure_of(body: GenerationRequest) -> Found | None:
    """The one form that `body` asks for; None: none. Raises OptionError for several, and for what cannot be."""
    found = [*_response_format(body.response_format), *_structured_outputs(body), *_shorthands(body)]
    if len(found) > 1:
        names = " and ".join(field for field, _ in found)
        raise OptionError(found[1][0], f"{names} each ask for a form of the output: give one of them.")
    return found[0] if found else None


def grammar_of(
    body: GenerationRequest,
    grammars: OutputGrammars,
    *,
    tools: ToolUse | None = None,
    prompt: str | None = None,
) -> OutputGrammar | None:
    """What the output is held to, see `OutputGrammars.make`; None: nothing. Raises OptionError."""
    field, structure = structure_of(body) or ("", None)
    return grammars.make(structure, structure_field=field, tools=tools, prompt=prompt)


def _response_format(wanted: ResponseFormat | None) -> list[Found]:
    if wanted is None or wanted.type == "text":
        return []
    if wanted.type == "json_object":
        if wanted.schema_ is not None:
            return [("response_format.schema", StructuredOutputs(json=wanted.schema_))]
        return [("response_format", StructuredOutputs(json_object=True))]
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise OptionError(
            "response_format.json_schema",
            "response_format of type json_schema needs the schema in json_schema.schema.",
        )
    return [("response_format.json_schema.schema", StructuredOutputs(json=wanted.json_schema.schema_))]


def _structured_outputs(body: GenerationRequest) -> list[Found]:
    given = body.structured_outputs
    if given is None:
        return []
    return [
        (
            "structured_outputs",
            StructuredOutputs(
                json=None if given.json_ is None else _schema(given.json_, "structured_outputs.json"),
                json_object=given.json_object,
                regex=given.regex,
                choice=None if given.choice is None else tuple(given.choice),
                grammar=given.grammar,
            ),
        )
    ]


def _shorthands(body: GenerationRequest) -> list[Found]:
    """vLLM's older names, and SGLang's."""
    found: list[Found] = []
    for field, schema in (("guided_json", body.guided_json), ("json_schema", body.json_schema)):
        if schema is not None:
            found.append((field, StructuredOutputs(json=_schema(schema, field))))
    for field, pattern in (("guided_regex", body.guided_regex), ("regex", body.regex)):
        if pattern is not None:
            found.append((field, StructuredOutputs(regex=pattern)))
    for field, choices in (("guided_choice", body.guided_choice), ("choice", body.choice)):
        if choices is not None:
            found.append((field, StructuredOutputs(choice=tuple(choices))))
    for field, grammar in (("guided_grammar", body.guided_grammar), ("ebnf", body.ebnf)):
        if grammar is not None:
            found.append((field, StructuredOutputs(grammar=grammar)))
    return found


def _schema(given: dict[str, Any] | str, field: str) -> JsonSchema:
    """Some clients send a schema as a string of JSON."""
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise OptionError(field, f"{field} is a string that is not JSON: {error}.") from None
    if not isinstance(schema, dict | bool):
        raise OptionError(field, f"{field} must be a JSON schema, which is an object.")
    return schema
