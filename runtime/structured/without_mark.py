"""JSON schemas whose JSON never spells the mark that ends a value."""

import json
import re
from typing import Any

from deeproot.runtime.structured.argument_schema import cannot_enforce
from deeproot.runtime.structured.options import JsonSchema
from deeproot.runtime.structured.schemas import Path, put, subschemas

_ANY = "_any_without_mark"
_ANY_REF = {"$ref": f"#/$defs/{_ANY}"}
_ELSEWHERE = ("$ref", "anyOf", "oneOf", "allOf", "const", "enum")
"""Schemas with one of these and no type get what they need where these lead to."""


def without_mark(schema: JsonSchema, mark: str, place: Path, field: str) -> JsonSchema:
    """`schema`, and no string or key in its JSON has `mark`, which starts with its only `<`.

    Raises OptionError, which names the place in `field`, where that is not to be had.
    """
    pattern = _pattern_without(mark)
    made = _bounded({} if schema is True else schema, mark, pattern, place, field)
    if isinstance(made, bool) or f'"{_ANY_REF["$ref"]}"' not in json.dumps(made):
        return made
    anything = {
        "pattern": pattern,
        "items": _ANY_REF,
        "patternProperties": {pattern: _ANY_REF},
        "additionalProperties": False,
    }
    return {**made, "$defs": {**made.get("$defs", {}), _ANY: anything}}


def _bounded(schema: JsonSchema, mark: str, pattern: str, place: Path, field: str) -> JsonSchema:
    if isinstance(schema, bool):
        return schema
    copy = dict(schema)
    for path, inner in subschemas(schema):
        put(copy, schema, path, _bounded(inner, mark, pattern, place + path, field))
    names = [*schema.get("properties", {}), schema.get("const"), schema.get("enum")]
    if mark in json.dumps(names, ensure_ascii=False):
        raise cannot_enforce(field, place, f"calls of this model cannot spell {mark!r} in a value")
    declared = schema.get("type")
    kinds = [declared] if isinstance(declared, str) else declared
    if kinds is None:
        if any(key in schema for key in _ELSEWHERE):
            return copy
        kinds = ["string", "array", "object"]
    if "string" in kinds and "enum" not in schema and "const" not in schema:
        _add_pattern(copy, pattern)
    if "array" in kinds:
        key = "additionalItems" if isinstance(schema.get("items"), list) else "items"
        if copy.get(key, True) in (True, {}):
            copy[key] = _ANY_REF
    if "object" in kinds:
        _bound_names(copy, pattern, place, field)
    return copy


def _add_pattern(copy: dict[str, Any], pattern: str) -> None:
    if "pattern" in copy:
        copy["allOf"] = [*copy.get("allOf", []), {"pattern": pattern}]
    else:
        copy["pattern"] = pattern


def _bound_names(copy: dict[str, Any], pattern: str, place: Path, field: str) -> None:
    """Keys that the schema does not list."""
    if "patternProperties" in copy:
        why = "calls of this model are written between tags, which such a key could spell"
        raise cannot_enforce(field, (*place, "patternProperties"), why)
    others = copy.get("additionalProperties", True)
    if others is False:
        return
    anything = others in (True, {})
    if copy.get("properties") and not anything:
        why = (
            "calls of this model are written between tags, which such a key could spell: list all properties"
        )
        raise cannot_enforce(field, (*place, "additionalProperties"), why)
    copy["patternProperties"] = {pattern: _ANY_REF if anything else others}
    copy["additionalProperties"] = False


def _pattern_without(mark: str) -> str:
    """Texts without `mark`: before the first `<`, and then after each `<` not the rest of the mark."""
    rest = ""
    for letter in reversed(mark[1:]):
        other = f"[^<{re.escape(letter)}][^<]*"
        rest = f"({other}|{re.escape(letter)}{rest})?" if rest else f"({other})?"
    return f"^[^<]*(<{rest})*$"
