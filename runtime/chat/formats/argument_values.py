"""Arguments that are written without JSON's quotes: what a text is, the tool's schema says."""

import json
from collections.abc import Mapping
from typing import Any

_PYTHON = {"True": True, "False": False, "None": None}
_MAX_DEPTH = 16


def arguments_json(texts: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """Arguments as a JSON object, from their texts and the schema of the tool's parameters."""
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    members = [
        f"{json.dumps(key, ensure_ascii=False)}: {value_json(text, known.get(key))}"
        for key, text in texts.items()
    ]
    return "{" + ", ".join(members) + "}"


def value_json(text: str, schema: Any) -> str:
    """What `text` means where `schema` is expected, as JSON.

    It is JSON, and stays as it is written, if that gives a kind of value that the schema allows and is no string; else
    it is a string as it stands. With no schema, or one that does not tell, all kinds are allowed.
    """
    kinds = kinds_of(schema)
    as_string = json.dumps(text, ensure_ascii=False)
    if kinds == {"string"}:
        return as_string
    try:
        # How large a number is does not matter here.
        value = json.loads(text, parse_constant=_refuse, parse_int=lambda digits: 0)
    except (ValueError, RecursionError):
        stripped = text.strip()
        if stripped not in _PYTHON or "string" in kinds or not kinds:
            return as_string
        value = _PYTHON[stripped]
        text = json.dumps(value)
    kind = kind_of(value)
    if not kinds:
        # A string in quotes where the schema does not say so: the quotes are the model's JSON.
        return text.strip()
    if kind == "string" or not (kind in kinds or (kind == "integer" and "number" in kinds)):
        return as_string
    return text.strip()


def kinds_of(schema: Any, depth: int = 0) -> frozenset[str]:
    """JSON's names of the kinds of values that a schema allows; empty if it does not tell."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset([declared])
    if isinstance(declared, list):
        return frozenset(kind for kind in declared if isinstance(kind, str))
    if "const" in schema:
        return frozenset([kind_of(schema["const"])])
    if isinstance(schema.get("enum"), list):
        return frozenset(map(kind_of, schema["enum"]))
    found: frozenset[str] = frozenset()
    options = schema.get("anyOf", schema.get("oneOf"))
    for option in options if isinstance(options, list) else ():
        kinds = kinds_of(option, depth + 1)
        if not kinds:
            return frozenset()
        found |= kinds
    return found


def kind_of(value: Any) -> str:
    """JSON schema's name of a value's kind."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
