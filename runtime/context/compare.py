"""What changed between two calls where nothing should: the first difference, its cause and its price."""

import json
from collections.abc import Sequence
from typing import Any

from deeproot.runtime.context.canonical import canonical_json
from deeproot.runtime.context.linter import classify
from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.report import LintFinding
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.working_set import Context

_AROUND = 32


def prefix_break(before: Context, after: Context) -> LintFinding | None:
    """Where the later call stops repeating the earlier one, if that is in the earlier one's root or trunk.

    `cost_tokens`: what the earlier call had from there on, now computed anew. None: the root and trunk came again.
    """
    shared = common_prefix(before.token_ids, after.token_ids)
    if shared == before.token_ids.size:
        return None
    place = next(boundary for boundary in before.boundaries if boundary.end > shared)
    if place.zone is Zone.LEAF:
        return None
    cause, excerpt = _difference(before, after)
    return LintFinding(place.key, place.zone, cause, excerpt, shared, int(before.token_ids.size) - shared)


def _difference(before: Context, after: Context) -> tuple[str, str]:
    if before.messages[:1] == after.messages[:1] and before.tools != after.tools:
        names = [[_name(tool) for tool in context.tools] for context in (before, after)]
        same = sorted(map(canonical_json, before.tools)) == sorted(map(canonical_json, after.tools))
        return ("tool order" if same else "tools changed"), f"{names[0]} -> {names[1]}"[:120]
    for one, other in zip(_texts(before.messages), _texts(after.messages), strict=False):
        if one != other:
            at = next(
                (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            start = max(0, at - _AROUND)
            old, new = one[start : at + _AROUND], other[start : at + _AROUND]
            return classify(old, new), f"{old} -> {new}"
    return "changed", ""


def _texts(messages: Sequence[Any]) -> list[str]:
    return [json.dumps(message, ensure_ascii=False) for message in messages]


def _name(tool: Any) -> str:
    return str(tool.get("function", tool).get("name", ""))
