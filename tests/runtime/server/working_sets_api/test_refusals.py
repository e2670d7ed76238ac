"""What a server refuses is named, appends nothing and hurts no other set."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.remote_working_sets import RemoteError, WorkingSets

from ..harness import RunningServer
from .sets import Fields, status_of


def test_what_is_wrong_is_named_and_nothing_is_appended(sets: WorkingSets) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    good = {"kind": "state_change", "text": "1", "data": {"name": "n"}}
    for bad, field in [
        ({"kind": "wish", "text": "x"}, "events[1].kind"),
        ({"kind": "assistant"}, "events[1]"),
        ({"kind": "assistant", "base64": "!"}, "events[1]"),
        ({"kind": "assistant", "text": "x", "blake3": "00"}, "events[1]"),
        ({"kind": "instruction", "text": "{}", "data": {"part": "tools"}}, "events[1].text"),
        ({"kind": "state_change", "text": "x", "data": {"part": "stand_in"}}, "events[1].data.part"),
        (
            {"kind": "tool_result", "text": "x", "data": {"message": {"tool_calls": 3}}},
            "events[1].data.message",
        ),
    ]:
        with pytest.raises(RemoteError) as error:
            kept.append(events=[good, bad])
        assert error.value.status == 400
        assert field in str(error.value), bad
    with pytest.raises(RemoteError, match=r"messages\[0\]\.role"):
        kept.append(messages=[{"role": "oracle", "content": "x"}])
    for fields, text in [
        ({"budget": None}, "budget"),
        ({"budget": 10**6}, "window"),
        ({"budget": {"total": 9, "low": 2.0}}, "low"),
    ]:
        with pytest.raises(RemoteError, match=text):
            sets.create(**fields)
    with pytest.raises(RemoteError, match="n must be 1"):
        kept.complete(n=2)
    assert len(kept.export().splitlines()) == 1


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_json_has_no_word_for_are_named(
    http: httpx.Client, sets: WorkingSets, number: str
) -> None:
    """The parser of bodies takes them; a log cannot."""
    kept = sets.create(policy="append_only")
    bodies = {
        "events[1].data": '{"events": [{"kind": "instruction", "text": "a"}, {"kind": "instruction", "text": "b",'
        f' "data": {{"step": {{"x": {number}}}}}}}]}}',
        "messages": f'{{"messages": [{{"role": "user", "content": "a", "x": {number}}}]}}',
    }
    for field, body in bodies.items():
        refused = http.post(f"{kept.set_id}/events", content=body)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field
    assert not kept.export()


def test_a_client_that_is_behind_appends_nothing(sets: WorkingSets) -> None:
    kept = sets.create(policy="append_only", messages=[{"role": "user", "content": "a"}])
    other = sets.open(kept.set_id)
    assert other.append(messages=[{"role": "user", "content": "b"}]) == 2
    with pytest.raises(RemoteError) as error:
        kept.append(messages=[{"role": "user", "content": "c"}])
    assert status_of(error) == (409, "conflict")
    assert len(kept.export().splitlines()) == 2
    assert len(kept.export(after=1).splitlines()) == 1


def test_a_set_that_cannot_be_assembled_hurts_no_other(server: RunningServer, sets: WorkingSets) -> None:
    fine = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    empty = sets.create(budget=1500)
    over = sets.create(policy="append_only", budget=30, messages=[{"role": "user", "content": "x" * 500}])
    for bad, code in [(empty, None), (over, "over_budget")]:
        for act in (bad.context, lambda bad=bad: bad.complete(max_tokens=2)):
            with pytest.raises(RemoteError) as error:
                act()
            assert status_of(error) == (400, code)
    assert fine.complete(max_tokens=2)["usage"]["completion_tokens"] >= 1
    # And it can be mended: nothing waits for the reply that never was.
    assert empty.append(messages=[{"role": "user", "content": "Hi"}]) == 1
    assert empty.complete(max_tokens=2)["usage"]["completion_tokens"] >= 1
    server.wait_idle()


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "role",
    "part",
    "name",
    "uri",
    "message",
    "conditions",
    "keep",
    "anchor",
    "content",
    "parts",
    "action",
    "step",
    "state",
    "mode",
    "names",
]
data = st.dictionaries(
    st.sampled_from(KEYS),
    json_values
    | st.sampled_from(["tool", "policy", "tools", "parts", "usage", "status", "skill", "schemas", "append"])
    | st.fixed_dictionaries(
        {}, optional={"tool_calls": json_values, "content": json_values, "role": json_values}
    ),
    max_size=4,
)
any_event = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(
            ["instruction", "assistant", "tool_result", "file_version", "diagnostic", "state_change"]
        )
    },
    optional={
        "text": st.text(max_size=20) | json_values,
        "base64": st.sampled_from(["", "AAAA", "/w=="]),
        "data": data,
        "call_id": st.text(max_size=3),
        "exit_code": st.integers(-3, 2**70),
        "time_ns": st.integers(-1, 2**70),
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=st.lists(any_event, min_size=1, max_size=4))
def test_whatever_is_logged_the_server_answers(
    http: httpx.Client, sets: WorkingSets, events: list[Fields]
) -> None:
    kept = sets.create(budget=1500, messages=[{"role": "user", "content": "Hello"}])
    answers = [http.post(f"{kept.set_id}/events", json={"events": [event]}) for event in events]
    answers.append(http.get(f"{kept.set_id}/context"))
    assert {answer.status_code for answer in answers} <= {200, 400}, [answer.text for answer in answers]
    kept.delete()
