"""The template of negative evidence: filled from the log, enforced on a model."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.compaction.evidence import (
    SECTIONS,
    Evidence,
    EvidenceError,
    check_evidence,
    completed,
    parse_evidence,
    render_evidence,
)
from deeproot.runtime.context.compaction.extractor import extract_evidence, grounds_of
from deeproot.runtime.context.compaction.turns import Call, Turn, TurnReader
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.openai_messages import import_messages
from deeproot.runtime.context.swe_agent import import_trajectory

HERE = Path(__file__).parents[1]
TURNS = (
    Turn(4, "The database must be down. Let me test it.", (
        Call(5, "bash", "pytest tests/test_auth.py --db-port=5432", True,
             "E   ConnectionRefusedError: 127.0.0.1:5432 refused", 1),
    )),
    Turn(6, "The port differs.", (
        Call(7, "bash", "pytest tests/test_auth.py --db-port=5433", True,
             "FATAL: password authentication failed for user postgres", 1),
    )),
)  # fmt: skip


def count(text: str) -> int:
    return -(-len(text) // 4)


def said(**fields: list[str]) -> str:
    return json.dumps({"hypotheses": [], "commands": [], "failures": [], "ruled_out": [], **fields})


def test_what_failed_and_how_is_read_off_the_log() -> None:
    text = render_evidence(extract_evidence(TURNS), 1_000, count)
    assert "- The database must be down. Let me test it. [#4]" in text
    assert "- pytest tests/test_auth.py --db-port=5432 -> exit 1 [#5]" in text
    assert "- E ConnectionRefusedError: 127.0.0.1:5432 refused [#5]" in text
    assert "- FATAL: password authentication failed for user postgres [#7]" in text
    ruled_out = text.split("Ruled out:")[1]
    assert "--db-port=5432" in ruled_out


@pytest.mark.parametrize("missing", ["hypotheses", "commands", "failures", "ruled_out"])
def test_a_section_that_is_left_out_is_named(missing: str) -> None:
    fields = json.loads(said())
    del fields[missing]
    with pytest.raises(EvidenceError, match=f"the template is not filled: {missing}: Field required"):
        parse_evidence(f"Here you are: {json.dumps(fields)}")


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        (
            {"failures": ["ConnectionRefusedError: 127.0.0.1:9999 refused"]},
            r"failures\[0\] is not in the events",
        ),
        ({"commands": ["systemctl restart postgresql -> exit 0"]}, r"commands\[0\] is not in the events"),
        ({"hypotheses": ["it was the port [#99]"]}, r"hypotheses\[0\] cites #99"),
    ],
)
def test_what_the_events_do_not_say_is_refused(fields: dict[str, list[str]], fault: str) -> None:
    with pytest.raises(EvidenceError, match=fault):
        check_evidence(parse_evidence(said(**fields)), grounds_of(TURNS))


def test_citations_are_required_where_asked_for() -> None:
    evidence = parse_evidence(said(ruled_out=["port 5432"]))
    check_evidence(evidence, grounds_of(TURNS))
    with pytest.raises(EvidenceError, match=r"ruled_out\[0\] cites no event"):
        check_evidence(evidence, grounds_of(TURNS), cited=True)


def test_what_a_model_leaves_out_is_put_back() -> None:
    model = parse_evidence(said(hypotheses=["the password is wrong [#7]"]))
    text = render_evidence(completed(model, extract_evidence(TURNS)), 1_000, count)
    assert "the password is wrong [#7]" in text
    assert "127.0.0.1:5432 refused" in text
    assert "FATAL: password authentication failed" in text


words = st.text(alphabet=st.sampled_from("abc/.:#[]{}\"'\\ 0159-_=\n\tEFé"), max_size=60)
calls = st.builds(
    Call,
    st.integers(1, 50),
    st.sampled_from(["bash", "book"]),
    words,
    st.booleans(),
    st.none() | words,
    st.sampled_from([None, 0, 1]),
)
some_turns = st.lists(
    st.builds(Turn, st.integers(1, 50), words, st.lists(calls, max_size=3).map(tuple)), max_size=6
)


def test_counts_of_what_does_not_fit_are_within_the_room() -> None:
    """Short entries: what says that they are in the archive takes more than they do."""
    evidence = Evidence(
        hypotheses=tuple(f"h{i}" for i in range(4)),
        commands=tuple(f"c{i}" for i in range(8)),
        failures=(),
        ruled_out=("r0",),
        facts=("f0", "f1"),
    )
    sizes = {room: count(render_evidence(evidence, room, count)) for room in range(80, 140)}
    assert all(size <= room for room, size in sizes.items())


@given(some_turns, st.integers(0, 300), words)
def test_the_extractor_fills_the_template_for_any_turns(turns: list[Turn], room: int, query: str) -> None:
    evidence = extract_evidence(turns, query)
    assert evidence == extract_evidence(turns, query)
    check_evidence(evidence, grounds_of(turns), cited=True)
    text = render_evidence(evidence, room, count)
    positions = [text.index(title) for title in SECTIONS.values()]
    assert positions == sorted(positions)
    assert len(text.split("\n")) <= 5 + sum(len(getattr(evidence, name)) for name in SECTIONS)
    assert count(text) <= max(room, 80)  # the headings stay, and counts of what does not


@given(
    st.text(max_size=200)
    | st.builds(
        json.dumps,
        st.dictionaries(st.sampled_from(list(SECTIONS)), st.lists(st.text(max_size=5)) | st.integers()),
    )
)
def test_any_answer_is_read_or_refused(answer: str) -> None:
    try:
        evidence = parse_evidence(answer)
    except EvidenceError:
        return
    assert isinstance(evidence, Evidence)


@pytest.mark.parametrize("name", ["pydicom", "airline"])
def test_real_runs_pass_their_own_check(name: str) -> None:
    with EventLog.memory() as log:
        if name == "pydicom":
            import_trajectory(
                log, json.loads((HERE / "fixtures" / "sweagent_pydicom_1458.traj.json").read_text())
            )
        else:
            line = (HERE / "data" / "tau_airline_6.jsonl").read_text().splitlines()[0]
            import_messages(log, json.loads(line)["messages"])
        turns = TurnReader(log, lambda seq: None).turns([e.seq for e in log.read()])
    evidence = extract_evidence(turns)
    check_evidence(evidence, grounds_of(turns), cited=True)
    text = render_evidence(evidence, 100_000, count)
    if name == "pydicom":
        assert "required elements are missing from the dataset: PixelRepresentation" in text
        assert "E999 SyntaxError: unmatched ']'" in text
    else:
        assert "credit_card_4421486" in text
