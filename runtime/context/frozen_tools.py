"""Tool schemas: sorted once by name, then frozen, so that no order of arrival moves a byte."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.tool_search import shelf_of
from deeproot.runtime.context.canonical import CanonicalError, canonical_json
from deeproot.runtime.context.items import Item


def spell_tools(payload: str) -> str:
    """A list of schemas as canonical JSON, by name, each with sorted keys, whatever order they came in.

    Raises ValueError if `payload` is no JSON list of objects, or if tools are deferred that have no name, or beside one that is
    named as the search for them.
    """
    schemas = json.loads(payload)
    if not isinstance(schemas, list) or not all(isinstance(schema, dict) for schema in schemas):
        raise ValueError("tools are no JSON list of objects; log them with record.tools")
    if any(schema.get("defer_loading") for schema in schemas):
        if nameless := [i for i, schema in enumerate(schemas) if not _name(schema)]:
            raise ValueError(f"tools[{nameless[0]}].function.name is missing, but tools are deferred")
        try:
            shelf_of(schemas)
        except TemplateError as error:
            raise ValueError(str(error)) from None
    return _spell(sorted(schemas, key=lambda schema: (_name(schema), _spell(schema))))


def frozen_tools(items: Sequence[Item]) -> tuple[tuple[Mapping[str, Any], ...], Item | None, tuple[str, ...]]:
    """The schemas to send (deferred ones not), the item that they stem from, and a note for each time that they really
    changed.

    A list that is merely in another order, or spelled otherwise, changes nothing: the first item stays.
    """
    frozen: Item | None = None
    notes: list[str] = []
    for item in items:
        if item.part != "tools":
            continue
        # Staging has sorted and spelled them canonically, so that equal lists are equal texts.
        if frozen is None or item.text != frozen.text:
            if frozen is not None:
                notes.append(f"tools changed at {item.key}: the whole prompt is computed anew from there")
            frozen = item
    return (_shown(json.loads(frozen.text)), frozen, tuple(notes)) if frozen is not None else ((), None, ())


def _shown(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The schemas that the root has: of deferred tools only the names, in the search for them."""
    shelf = shelf_of(tools, name_them=True)
    return tuple(tools) if shelf is None else shelf.shown


def _spell(value: Any) -> str:
    """Canonical JSON; with Python's spelling where that has none (an integer limit of 2^63 - 1 in a schema, say)."""
    try:
        return canonical_json(value)
    except CanonicalError:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _name(schema: Mapping[str, Any]) -> str:
    function = schema.get("function", schema)
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""
