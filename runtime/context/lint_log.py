"""Finds what breaks the prefix between the calls of a request log, where, and what it cost."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deeproot.runtime.context.canonical import CanonicalError, canonical_json
from deeproot.runtime.context.linter import classify
from deeproot.runtime.context.request_log import LoggedRequest
from deeproot.runtime.context.segments import Zone

_EXCERPT = 48


@dataclass(frozen=True, slots=True)
class Unit:
    """One stretch of a request as servers see it: the tool schemas, or a message."""

    where: str
    zone: Zone
    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Break:
    """Call `line` repeats call `since` only up to `where`; the rest of that call is computed anew.

    `cost_tokens`: tokens that the earlier call had behind the break, which an append would have reused.
    """

    line: int
    since: int
    where: str
    zone: Zone
    cause: str
    before: str
    after: str
    kept_tokens: int
    cost_tokens: int


@dataclass(frozen=True, slots=True)
class LintResult:
    """Of a whole log. `total_tokens`: of all prompts; `reusable_tokens`: of which an earlier one was the prefix."""

    requests: int
    sessions: int
    total_tokens: int
    reusable_tokens: int
    breaks: tuple[Break, ...]

    @property
    def lost_tokens(self) -> int:
        """Tokens computed anew because of breaks."""
        return sum(found.cost_tokens for found in self.breaks)


def units_of(request: LoggedRequest) -> list[Unit]:
    """System message, tools, then the turns; zones as a server infers them from a plain request."""
    messages = list(enumerate(request.messages))
    head = [(i, m) for i, m in messages if m["role"] in ("system", "developer")][:1]
    head = head if head and head[0][0] == 0 else []
    rest = messages[len(head) :]
    answered = max((i for i, m in rest if m["role"] == "assistant"), default=-1)
    units = [Unit(f"messages[{i}] ({_shown(m['role'])})", Zone.ROOT, _spell(m), m) for i, m in head]
    if request.tools:
        units.append(Unit("tools", Zone.ROOT, _spell(list(request.tools)), list(request.tools)))
    for i, m in rest:
        zone = Zone.LEAF if i > answered else Zone.TRUNK
        units.append(Unit(f"messages[{i}] ({_shown(m['role'])})", zone, _spell(m), m))
    return units


def lint_requests(requests: Sequence[LoggedRequest], count: Callable[[str], int]) -> LintResult:
    """Compare each call with the best earlier one of its session. `count`: tokens of a text.

    A change in the earlier call's leaf (its newest user and tool messages) is what a status line or reminder does,
    and no break.
    """
    earlier: dict[str, _Calls] = {}
    breaks = []
    total = reusable = 0
    for request in requests:
        units = units_of(request)
        total += sum(count(unit.text) for unit in units)
        calls = earlier.setdefault(_session_of(request), _Calls())
        best = calls.best(units)
        if best is not None:
            past, past_units, shared = best
            kept = sum(count(unit.text) for unit in units[:shared])
            reusable += kept
            # A call that is wholly an earlier one's beginning (a rewind) computes nothing anew.
            diverges = shared < min(len(past_units), len(units))
            if diverges and past_units[shared].zone is not Zone.LEAF:
                breaks.append(_break(request, past, past_units, units, shared, kept, count))
        calls.add(request, units)
    return LintResult(len(requests), len(earlier), total, reusable, tuple(breaks))


class _Calls:
    """The calls of one session as a tree: calls that begin alike share a path, so a long log takes linear time."""

    def __init__(self) -> None:
        self._calls: list[tuple[LoggedRequest, list[Unit]]] = []
        self._root = _Node(-1)

    def add(self, request: LoggedRequest, units: list[Unit]) -> None:
        self._calls.append((request, units))
        node = self._root
        node.newest = len(self._calls) - 1
        for unit in units:
            node = node.next.setdefault(unit.text, _Node(-1))
            node.newest = len(self._calls) - 1

    def best(self, units: Sequence[Unit]) -> tuple[LoggedRequest, list[Unit], int] | None:
        """The earlier call that shares most units from the start, the newest of several, and how many these are."""
        if not self._calls:
            return None
        node, shared = self._root, 0
        while shared < len(units) and (deeper := node.next.get(units[shared].text)) is not None:
            node, shared = deeper, shared + 1
        return *self._calls[node.newest], shared


@dataclass(slots=True)
class _Node:
    """Calls that share all units up to here. `newest`: the last of them."""

    newest: int
    next: dict[str, "_Node"] = field(default_factory=dict)


def _break(
    request: LoggedRequest,
    past: LoggedRequest,
    before: Sequence[Unit],
    after: Sequence[Unit],
    at: int,
    kept: int,
    count: Callable[[str], int],
) -> Break:
    old, new = before[at], after[at]
    cost = sum(count(unit.text) for unit in before[at:])
    first = _first_difference(old.text, new.text)
    inside = count(old.text[:first]) if first else 0
    start = max(0, first - _EXCERPT // 2)
    return Break(
        line=request.line,
        since=past.line,
        where=f"{old.where}, character {first}",
        zone=old.zone,
        cause=_cause(old, new, before[at:], after[at:]),
        before=old.text[start : start + _EXCERPT],
        after=new.text[start : start + _EXCERPT],
        kept_tokens=kept + inside,
        cost_tokens=cost - inside,
    )


def _cause(old: Unit, new: Unit, before: Sequence[Unit], after: Sequence[Unit]) -> str:
    """What happened to the unit that differs. `before` and `after`: it and what follows it in both calls."""
    if any(unit.text == old.text for unit in after) or any(unit.text == new.text for unit in before):
        return "removed, added or moved message"
    if old.where == "tools" and new.where == "tools":
        return _tools_cause(old.value, new.value)
    if isinstance(old.value, dict) and isinstance(new.value, dict):
        if old.value.get("role") != new.value.get("role"):
            return "removed, added or moved message"
        if _canonical(old.value) == _canonical(new.value) or _same_arguments(old.value, new.value):
            return "spelled otherwise"
        if {**old.value, "reasoning_content": None} == {**new.value, "reasoning_content": None}:
            return "dropped thinking"
    return classify(old.text, new.text)


def _tools_cause(old: Sequence[Any], new: Sequence[Any]) -> str:
    spelled_old, spelled_new = [_canonical(tool) for tool in old], [_canonical(tool) for tool in new]
    if spelled_old == spelled_new:
        return "spelled otherwise"
    return "tool order" if sorted(spelled_old) == sorted(spelled_new) else "tools changed"


def _same_arguments(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two messages differ only in how their tool calls' arguments are written."""
    return _canonical(_parsed(old)) == _canonical(_parsed(new))


def _parsed(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            with suppress(ValueError):
                function = {**function, "arguments": json.loads(function["arguments"])}
        calls.append({**call, "function": function} if isinstance(call, dict) else call)
    return {**message, "tool_calls": calls}


def _session_of(request: LoggedRequest) -> str:
    """The log's own session, else the task: the model and the first user message."""
    if request.session is not None:
        return f"session {request.session}"
    task = next((m for m in request.messages if m["role"] == "user"), None)
    return f"{request.model} {_canonical(task)}"


def _shown(role: str) -> str:
    """A role as it can be printed: a log may hold anything."""
    return role if role.isidentifier() and role.isascii() else ascii(role)


def _spell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _canonical(value: Any) -> str:
    try:
        return canonical_json(value)
    except CanonicalError:
        return json.dumps(value, sort_keys=True)


def _first_difference(one: str, other: str) -> int:
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
