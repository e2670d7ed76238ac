"""JSON schemas as callers give them: bounded, and in the form that the grammar library understands."""

import json
from collections.abc import Iterator
from typing import Any

from deeproot.runtime.sampling_options import OptionError
from deeproot.runtime.structured.options import JsonSchema

MAX_SCHEMA_BYTES = 128 * 1024
MAX_SCHEMA_DEPTH = 64
"""Objects and lists inside each other."""

_FORMATS = frozenset(
    [
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
    ]  # those that the library enforces
)
_ONE = (
    "additionalProperties",
    "items",
    "additionalItems",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)
_LIST = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

Path = tuple[str | int, ...]


def checked_schema(schema: Any, field: str) -> JsonSchema:
    """A schema within the bounds, ready to be compiled. Raises OptionError, which names `field`.

    What JSON Schema defines as a note and not as a rule is dropped: a `format` that is none of the standard's says
    nothing about the text. Where a schema lists an object's properties and does not say whether there may be others,
    there are none: a weak model would go on to invent some, and what has none validates too.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise OptionError(field, f"{field} must be a JSON schema, which is an object.")
    # Depth first: encoding what is too deep would fail on its own.
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise OptionError(
            field, f"{field} has more than {MAX_SCHEMA_DEPTH} levels: make it flatter, or use $defs and $ref."
        )
    size = len(json.dumps(schema, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if size > MAX_SCHEMA_BYTES:
        raise OptionError(
            field, f"{field} is {size} bytes of JSON, and at most {MAX_SCHEMA_BYTES} are taken."
        )
    _refuse_narrow_bounds(schema, (), field)
    cleaned = _without_notes(schema)
    cleaned.pop("x-guidance", None)  # the library's own settings are not the caller's
    return cleaned if _joins_lists(cleaned) else _closed(cleaned)


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schemas directly inside one that are objects, each with the keys that lead to it."""
    for key in _ONE:
        if isinstance(schema.get(key), dict):
            yield (key,), schema[key]
    for key in _LIST:
        if isinstance(schema.get(key), list):
            yield from (((key, i), item) for i, item in enumerate(schema[key]) if isinstance(item, dict))
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            yield from (((key, name), item) for name, item in schema[key].items() if isinstance(item, dict))


def dotted(path: Path) -> str:
    """`.properties.city.anyOf[0]`"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def _depth(value: Any) -> int:
    """Levels of objects and lists, counted without recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            return depth
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth


def _refuse_narrow_bounds(schema: dict[str, Any], path: Path, field: str) -> None:
    """llguidance 1.9 allows a whole number that is excluded, if the other bound is less than 1 away from it."""
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    excluded = [schema[key] for key in ("exclusiveMinimum", "exclusiveMaximum") if key in schema]
    are_numbers = all(isinstance(bound, int | float) for bound in lows + highs)
    is_narrow = are_numbers and bool(lows and highs) and min(highs) - max(lows) < 1
    if is_narrow and schema.get("type") != "integer" and any(bound == int(bound) for bound in excluded):
        why = "a whole number is excluded and the other bound is less than 1 away from it: move the bound"
        raise OptionError(field, f"{field}{dotted(path)} cannot be enforced: {why}.")
    for step, inner in subschemas(schema):
        _refuse_narrow_bounds(inner, path + step, field)


def _without_notes(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy, as deep as schemas go, without formats that say nothing."""
    copy = dict(schema)
    for path, inner in subschemas(schema):
        put(copy, schema, path, _without_notes(inner))
    if isinstance(copy.get("format"), str) and copy["format"] not in _FORMATS:
        del copy["format"]
    return copy


_OPEN_ENDED = ("additionalProperties", "patternProperties", "unevaluatedProperties", "minProperties")
_JOINING = ("$ref", "anyOf", "oneOf")


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy without properties that no schema lists. `_joins_lists` must be false."""
    copy = dict(schema)
    for path, inner in subschemas(schema):
        put(copy, schema, path, _closed(inner))
    listed, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(listed, dict) or not listed or not isinstance(required, list):
        return copy
    if not any(key in schema for key in _OPEN_ENDED) and all(name in listed for name in required):
        copy["additionalProperties"] = False
    return copy


def _joins_lists(schema: dict[str, Any]) -> bool:
    """Whether several schemas together say which properties an object has."""
    joins = "allOf" in schema or (
        any(key in schema for key in ("properties", "required")) and any(key in schema for key in _JOINING)
    )
    return joins or any(_joins_lists(inner) for _, inner in subschemas(schema))


def put(copy: dict[str, Any], original: dict[str, Any], path: Path, value: Any) -> None:
    """Replace a direct subschema in a shallow copy, whose lists and maps are copied when they are first changed."""
    key, *rest = path
    assert isinstance(key, str), "a path starts with a keyword"
    if not rest:
        copy[key] = value
        return
    if copy[key] is original[key]:
        copy[key] = original[key].copy()
    copy[key][rest[0]] = value
