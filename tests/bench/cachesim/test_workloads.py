"""Importers and generators: what they read, what they refuse, and that calls follow from each other."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.conversations import Renderer, sharegpt
from deeproot.bench.cachesim.made_runs import AgentShape, Spread, made_runs
from deeproot.bench.cachesim.replaying import own_caches, replay, room_for_all
from deeproot.bench.cachesim.workloads import FORMS, named_workload, read_workload
from deeproot.bench.working_set import byte_tokenizer
from deeproot.runtime.bench_flags import FORMS as FLAG_FORMS
from deeproot.runtime.bench_flags import WORKLOADS
from deeproot.runtime.context.openai_messages import LogImportError
from deeproot.runtime.context.tokenizer import TokenizersAdapter

TRAJECTORY = (
    Path(__file__).parents[2] / "runtime" / "context" / "fixtures" / "sweagent_pydicom_1458.traj.json"
)
CONVERSATION = [
    {"role": "system", "content": "Be brief. " * 20},
    {"role": "user", "content": "What is the time?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "12:30"},
    {"role": "assistant", "content": "Half past twelve."},
    {"role": "user", "content": "Thank you."},
    {"role": "assistant", "content": "You are welcome."},
]


def test_each_call_of_a_conversation_is_the_last_one_and_its_answer_and_more() -> None:
    calls = Renderer(TokenizersAdapter(byte_tokenizer())).conversation(CONVERSATION, "s")
    assert len(calls) == 3
    for before, after in pairwise(calls):
        known = before.computed_ids
        assert before.answer.size > 3
        assert (after.prompt[: known.size] == known).all()
        assert after.time_s > before.time_s
        assert set(after.marks) <= set(after.ends)
        assert before.marks[-1] in after.ends  # so that a look back can find it


def test_flags_name_what_there_is() -> None:
    assert tuple(FORMS) == FLAG_FORMS
    renderer = Renderer()
    for name in WORKLOADS:
        assert named_workload(name, renderer, seed=1, most=2)
    with pytest.raises(ValueError, match="give airline"):
        named_workload("x", renderer, 1, 1)


def test_files_of_every_form(tmp_path: Path) -> None:
    roles = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}
    shared = {
        "conversations": [{"from": roles[m["role"]], "value": m["content"] or "x"} for m in CONVERSATION]
    }
    texts = {
        "requests": "\n".join(json.dumps({"model": "m", "messages": CONVERSATION[:n]}) for n in (2, 4, 6)),
        "runs": json.dumps({"messages": CONVERSATION}),
        "sharegpt": json.dumps([shared]),
        "swe-agent": TRAJECTORY.read_text(),
        "blocks": json.dumps({"hash_ids": [1, 2], "input_length": 600, "output_length": 3}),
    }
    counts = {
        "requests": 3,
        "runs": 3,
        "sharegpt": 3,
        # the record has no instructions, so that its first step answers nothing
        "swe-agent": len(json.loads(texts["swe-agent"])["trajectory"]) - 1,
        "blocks": 1,
    }
    for form, text in texts.items():
        (tmp_path / form).write_text(text)
        assert len(read_workload(tmp_path / form, form, Renderer())) == counts[form]
    from_requests, from_run = (
        read_workload(tmp_path / form, form, Renderer()) for form in ("requests", "runs")
    )
    for one, other in zip(from_requests, from_run, strict=True):
        assert (one.prompt == other.prompt).all()


@pytest.mark.parametrize(
    ("form", "text", "field"),
    [
        ("runs", '{"messages": 1}', r"\[0\].messages"),
        ("runs", '{"messages": [{"role": "user", "content": "x"}]}', "no call"),
        ("runs", '{"messages": [3]}', r"messages\[0\]"),
        ("runs", "{\n{", "line 1"),
        ("sharegpt", '{"conversations": [{"from": "alien", "value": ""}]}', r"conversations\[0\].from"),
        ("sharegpt", '{"conversations": [{"from": "gpt"}]}', r"conversations\[0\].value"),
        ("sharegpt", "[3]", "conversations is missing"),
        ("swe-agent", "[]", "give a SWE-agent"),
        ("swe-agent", "{}", "trajectory is missing"),
        ("requests", "{}", "line 1: messages"),
        ("x", "", "give one of"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(form: str, text: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ValueError, match=field):
        read_workload(tmp_path / "f", form, Renderer())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["gpt", "human"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["conversations", "from", "value"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(anything)
def test_any_json_is_sharegpt_or_refused(value: object) -> None:
    try:
        messages = sharegpt(value, "x")
    except LogImportError:
        return
    assert all(isinstance(message["content"], str) for message in messages)


def test_made_runs_are_the_same_for_a_seed_and_follow_the_shape() -> None:
    shape = AgentShape(sessions=6, turns=Spread(12, 0.2), fork_share=0.2, window=6000, keep_turns=2)
    one, same, other = (made_runs(shape, seed) for seed in (1, 1, 2))
    assert all((a.prompt == b.prompt).all() and a.time_s == b.time_s for a, b in zip(one, same, strict=True))
    assert [call.time_s for call in one] == sorted(call.time_s for call in one)
    assert len(other) != len(one) or any(
        a.prompt.size != b.prompt.size for a, b in zip(one, other, strict=True)
    )
    root = one[0].prompt[: shape.root_tokens]
    assert all((call.prompt[: shape.root_tokens] == root).all() for call in one)
    helpers = {call.session for call in one if "helper" in call.session}
    assert helpers
    sizes = [call.prompt.size for call in one if call.session == "session 0"]
    assert any(after < before for before, after in pairwise(sizes))  # a compaction


def test_spread_has_its_median_and_width() -> None:
    rng = np.random.default_rng(0)
    drawn = np.log([Spread(50, 0.5).draw(rng) for _ in range(4000)])
    assert np.exp(np.median(drawn)) == pytest.approx(50, rel=0.05)
    assert drawn.std() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("fork_share", lambda: AgentShape(fork_share=2)),
        ("window", lambda: AgentShape(window=0)),
        ("arrival_s", lambda: AgentShape(arrival_s=-1)),
        ("median", lambda: Spread(0, 1)),
    ],
)
def test_a_shape_that_cannot_be_is_refused(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=field):
        make()


def test_smaller_caches_never_have_more_and_room_for_all_is_enough() -> None:
    calls = made_runs(AgentShape(sessions=3, turns=Spread(6, 0.2)), 3)
    room = room_for_all(calls)
    for unlimited, more, small in zip(
        own_caches(room), own_caches(2 * room), own_caches(12_000), strict=True
    ):
        whole = replay(calls, unlimited)
        assert replay(calls, more).cached == whole.cached
        limited = replay(calls, small)
        assert limited.cached < whole.cached
        assert limited.prompt == limited.cached + limited.computed == whole.prompt
