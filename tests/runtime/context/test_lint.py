"""The linter: what broke the prefix, where, and what it cost."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from deeproot.runtime.context.lint_log import LintResult, Unit, _Calls, lint_requests, units_of
from deeproot.runtime.context.request_log import RequestLogError, read_requests

from .lint_logs import CALL, add_timestamp, requests, turn_tools_round


def lint(bodies: list[dict[str, Any]]) -> LintResult:
    return lint_requests(read_requests(json.dumps(body) for body in bodies), len)


def test_a_well_kept_session_is_clean() -> None:
    result = lint(requests())
    assert result.breaks == ()
    assert (result.requests, result.sessions) == (4, 1)
    assert 0.5 < result.reusable_tokens / result.total_tokens < 1


def _uuid(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] += f" request 0f8fad5b-d9cb-469f-a165-70867728950{i}"


def _counter(body: dict[str, Any], i: int) -> None:
    body["messages"][0]["content"] = f"Turn {i} of 9. " + body["messages"][0]["content"]


def _tool_change(body: dict[str, Any], i: int) -> None:
    body["tools"][1]["function"]["description"] = f"does {'x' * i}"


def _thinking(body: dict[str, Any], i: int) -> None:
    for message in body["messages"][:-2]:
        message.pop("reasoning_content", None)


def _spelling(body: dict[str, Any], i: int) -> None:
    if i == 3:
        for message in body["messages"]:
            if message.get("tool_calls"):
                message["tool_calls"] = [{**CALL, "function": {"name": "one", "arguments": '{"a":1,"b":2}'}}]


def _window(body: dict[str, Any], i: int) -> None:
    if i == 3:
        del body["messages"][2:4]


def _edit(body: dict[str, Any], i: int) -> None:
    if i == 3:
        body["messages"][3]["content"] = "[cleared]"


def _key_order(body: dict[str, Any], i: int) -> None:
    if i == 2:
        body["messages"] = [dict(reversed(m.items())) for m in body["messages"]]


@pytest.mark.parametrize(
    ("change", "cause", "where"),
    [
        (add_timestamp, "timestamp", "messages[0] (system)"),
        (_uuid, "uuid", "messages[0] (system)"),
        (_counter, "counter", "messages[0] (system)"),
        (turn_tools_round, "tool order", "tools"),
        (_tool_change, "tools changed", "tools"),
        (_thinking, "dropped thinking", "messages[4] (assistant)"),
        (_spelling, "spelled otherwise", "messages[2] (assistant)"),
        (_window, "removed, added or moved message", "messages[2] (assistant)"),
        (_edit, "changed", "messages[3] (tool)"),
        (_key_order, "spelled otherwise", "messages[0] (system)"),
    ],
)
def test_each_break_is_named_and_priced(
    change: Callable[[dict[str, Any], int], None], cause: str, where: str
) -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        change(body, i)
    result = lint(bodies)
    assert result.breaks
    found = result.breaks[-1]
    assert found.cause == cause
    assert found.where.startswith(where + ", character ")
    # The price: what the earlier call had behind the break.
    earlier = bodies[found.since - 1]
    order = [earlier["messages"][0], earlier["tools"], *earlier["messages"][1:]]
    spelled = "".join(json.dumps(value, ensure_ascii=False) for value in order)
    assert found.kept_tokens + found.cost_tokens == len(spelled)
    assert found.before != found.after
    assert spelled[found.kept_tokens] in found.before


def test_a_changing_tail_is_no_break() -> None:
    bodies = requests()
    for i, body in enumerate(bodies):
        body["messages"].append({"role": "user", "content": f"<agent_status>time: 10:00:0{i}</agent_status>"})
    assert lint(bodies).breaks == ()


def test_sessions_are_told_apart() -> None:
    one, other = requests(), requests()
    for body in other:
        body["messages"][1]["content"] = "Something else."
    mixed = [body for pair in zip(one, other, strict=True) for body in pair]
    result = lint(mixed)
    assert (result.sessions, result.breaks) == (2, ())
    for i, body in enumerate(mixed):
        body["metadata"] = {"session_id": "same" if i < 2 else "another"}
    assert lint(mixed).sessions == 2
    # A branch that goes back to an earlier call is compared with that one.
    assert lint([*one, one[1]]).breaks == ()


@pytest.mark.parametrize("wrapper", ["body", "request", "params"])
def test_wrapped_requests_are_read(wrapper: str) -> None:
    line = json.dumps(
        {
            "custom_id": "x",
            wrapper: requests(1)[0],
            "response": {
                "body": {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
            },
        }
    )
    (found,) = read_requests([line, "", "  "])
    assert (found.model, found.prompt_tokens, found.cached_tokens) == ("m", 9, 4)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: not an object"),
        ("{}", "line 1: messages is missing"),
        ('{"messages": [{"content": "x"}]}', "line 1: messages is missing or no list of objects with a role"),
        ('{"messages": [], "tools": {}}', "line 1: tools is no list"),
        ("", "the log has no request"),
    ],
)
def test_bad_lines_are_named(line: str, says: str) -> None:
    with pytest.raises(RequestLogError, match=says):
        read_requests([line])


def test_a_long_session_takes_time_in_proportion() -> None:
    """Work is counted in comparisons of whole messages: as many as the log has, not calls times calls."""
    log = read_requests(json.dumps(body) for body in requests(120))
    units = [units_of(request) for request in log]
    compared = 0

    class Text(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    calls = _Calls()
    for request, own in zip(log, units, strict=True):
        copies = [Unit(u.where, u.zone, Text(u.text), u.value) for u in own]
        best = calls.best(copies)
        assert best is None or best[2] == len(own) - 2
        calls.add(request, copies)
    assert compared <= 2 * sum(map(len, units))
