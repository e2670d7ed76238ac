"""A tool's schema taken apart into arguments, for ways of writing calls that have each argument on its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.options import JsonSchema
from deeproot.runtime.structured.schemas import Path, dotted, subschemas

_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset(["title", "description", "default", "examples", "deprecated", "$comment", *_DEFINITIONS])
_RULES = frozenset(
    [
        "$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "const", "enum", "patternProperties",
        "propertyNames", "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
    ]
)  # fmt: skip
"""What says something about an object, beside what is understood here."""


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    schema: JsonSchema
    """Whole: with the definitions that it may refer to."""
    required: bool
    place: Path
    """Where its schema stands in the tool's."""


@dataclass(frozen=True, slots=True)
class Arguments:
    listed: tuple[Argument, ...]
    """Those that the schema names, in its order."""
    extra: JsonSchema | None
    """Of all others, whole; None if there may be none."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.listed)


def cannot_enforce(field: str, place: Path, why: str) -> OptionError:
    """The error that names a place in a tool's schema, `field`."""
    return OptionError(field, f"{field}{dotted(place)} cannot be enforced: {why}.")


def says_nothing(schema: JsonSchema) -> bool:
    """Whether a schema allows everything, at a glance."""
    return schema is True or (isinstance(schema, dict) and schema.keys() <= _NOTES)


def arguments_of(schema: JsonSchema, field: str) -> Arguments:
    """The arguments by a schema that has passed `checked_schema`. Raises OptionError where they cannot be told apart."""
    if isinstance(schema, bool):
        schema = {}
    joining = sorted(schema.keys() & _RULES)
    if joining:
        why = "calls of this model have each argument on its own, and this says something about all of them"
        raise cannot_enforce(field, (joining[0],), why)
    _check_references(schema, (), field)
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    extra: JsonSchema | None = _whole(schema.get("additionalProperties", True), definitions)
    if extra is False:
        extra = None
    properties: Mapping[str, JsonSchema] = schema.get("properties", {})
    required = schema.get("required", [])
    listed = [
        Argument(name, _whole(inner, definitions), name in required, ("properties", name))
        for name, inner in properties.items()
        if inner is not False
    ]
    if extra is not None:
        unlisted = (name for name in dict.fromkeys(required) if name not in properties)
        listed += [Argument(name, extra, True, ("required",)) for name in unlisted]
    return Arguments(tuple(listed), extra)


def _whole(schema: JsonSchema, definitions: Mapping[str, Any]) -> JsonSchema:
    return schema if isinstance(schema, bool) else {**schema, **definitions}


def _check_references(schema: Mapping[str, Any], place: Path, field: str) -> None:
    target = schema.get("$ref")
    if isinstance(target, str) and not target.startswith(tuple(f"#/{key}/" for key in _DEFINITIONS)):
        why = "calls of this model have each argument on its own, so $ref can only lead to $defs"
        raise cannot_enforce(field, (*place, "$ref"), why)
    for step, inner in subschemas(dict(schema)):
        _check_references(inner, place + step, field)
