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
    values = {key: typed_value(text, known.get(key)) for key, text in texts.items()}
    return json.dumps(values, ensure_ascii=False)


def typed_value(text: str, schema: Any) -> Any:
    """What `text` means where `schema` is expected.

    It is JSON if that gives a kind of value that the schema allows and is no string, else it is a string as it stands.
    With no schema, or one that does not tell, all kinds are allowed.
    """
    kinds = kinds_of(schema)
    if kinds == {"string"}:
        return text
    try:
        value = json.loads(text, parse_constant=_refuse)
        # Larger numbers than Python writes, or halves of surrogate pairs, cannot be sent on.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        stripped = text.strip()
        if stripped not in _PYTHON or "string" in kinds or not kinds:
            return text
        value = _PYTHON[stripped]
    kind = kind_of(value)
    if kind == "string":
        # A string in quotes where the schema does not say so: the quotes are the model's JSON.
        return value if not kinds else text
    return value if not kinds or kind in kinds or (kind == "integer" and "number" in kinds) else text


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
