"""Tool schemas: sorted once by name, then frozen, so that no order of arrival moves a byte."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deeproot.runtime.context.canonical import canonical_json
from deeproot.runtime.context.items import Item


def sorted_tools(schemas: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Schemas by name, each with its keys in canonical order, whatever order they came in."""
    ordered = sorted(schemas, key=lambda schema: (_name(schema), canonical_json(schema)))
    return tuple(json.loads(canonical_json(schema)) for schema in ordered)


def frozen_tools(items: Sequence[Item]) -> tuple[tuple[Mapping[str, Any], ...], Item | None, tuple[str, ...]]:
    """The schemas to send, the item that they stem from, and a note for each time that they really changed.

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
    return (tuple(json.loads(frozen.text)), frozen, tuple(notes)) if frozen is not None else ((), None, ())


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("function", schema).get("name", ""))
