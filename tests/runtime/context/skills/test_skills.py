"""Skills: what is read, what stands in the root, and a body that comes once and never moves."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.skills.skill import Skill, SkillError, catalogue, load_skills, parse_skill
from deeproot.runtime.context.skills.use import SKILL_TOOL, answer, use, used
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import Context, WorkingSet

from ..agent_turns import TOOLS, call, extends, linted, text_of

SLIDES = """\
---
name: slides
use_when: slides are made or changed
not_when: a PDF is only read
counter_examples:
  - summarise this PDF
  - what is on
    slide 3?
license: MIT
---

# Slides
Write html first, then convert.
"""


def test_a_skill_is_read() -> None:
    skill = parse_skill(SLIDES, "x")
    assert skill == Skill(
        "slides",
        "slides are made or changed",
        "# Slides\nWrite html first, then convert.",
        "a PDF is only read",
        ("summarise this PDF", "what is on slide 3?"),
    )
    assert skill.line == (
        "- slides: slides are made or changed. Not when: a PDF is only read."
        ' Not for: "summarise this PDF"; "what is on slide 3?".'
    )
    assert skill.complaints == ()


def test_a_plain_one_is_read_and_complained_of() -> None:
    skill = parse_skill("---\nname: pdf\ndescription: Reads PDFs.\n---\nUse pypdf.", "x")
    assert skill.line == "- pdf: Reads PDFs."
    assert [why.split(":")[1].split(" is")[0] for why in skill.complaints] == [
        " not_when",
        " counter_examples",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# no front", "f.md: begins with no YAML between two lines of ---"),
        ("---\nname: a\nuse_when: b\n", "f.md: begins with no YAML"),
        ("---\nname: [\n---\nx", "f.md: the part between --- is no YAML"),
        ("---\njust words\n---\nx", "f.md: the part between --- has no fields"),
        ("---\nname: A b\nuse_when: c\n---\nx", "f.md: name is 'A b'; give small letters"),
        ("---\nname: 3\nuse_when: c\n---\nx", "f.md: name is int; give a text"),
        ("---\nname: a\n---\nx", "f.md: use_when is missing"),
        ("---\nname: a\nuse_when: c\n---\n  \n", "f.md: has no instructions"),
        ("---\nname: a\nuse_when: c\ncounter_examples: no\n---\nx", "f.md: counter_examples is no list"),
        (f"---\nname: a\nuse_when: {'c' * 1025}\n---\nx", "f.md: use_when has 1025 characters; give at most 1024"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_skill_is_said(text: str, says: str) -> None:
    if "counter_examples: no" in text:
        text = text.replace(": no", ": none of them")
    with pytest.raises(SkillError, match=f"^{says}"):
        parse_skill(text, "f.md")


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="---\n: abcname[]{}use_when'\"&*!|>%@`\t\0é", max_size=120) | st.text(max_size=60))
def test_any_text_is_a_skill_or_refused(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\nbody", f"---\nname: a\nuse_when: b\n{text}\n---\nbody"):
        try:
            assert parse_skill(whole, "f").body
        except SkillError as error:
            assert str(error).startswith("f: ")  # noqa: PT017


def test_a_folder_of_skills_in_one_order(tmp_path: Path) -> None:
    for folder, name in (("z", "alpha"), ("a", "zulu"), ("m", "mike")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "SKILL.md").write_text(f"---\nname: {name}\nuse_when: it fits\n---\nDo it.")
    (tmp_path / "not a skill").mkdir()
    skills = load_skills(tmp_path)
    assert [skill.name for skill in skills] == ["alpha", "mike", "zulu"]
    assert catalogue(skills) == catalogue(skills[::-1])
    assert catalogue(()) == ""
    with pytest.raises(SkillError, match="two skills are named mike"):
        catalogue([*skills, skills[1]])
    (tmp_path / "a" / "SKILL.md").write_bytes(b"---\nname: \xff")
    with pytest.raises(SkillError, match="no UTF-8 at byte 10"):
        load_skills(tmp_path)


def begin(log: EventLog, skills: tuple[Skill, ...]) -> None:
    record.policy(log, "You are careful.")
    record.policy(log, catalogue(skills))
    record.tools(log, [*TOOLS, SKILL_TOOL])
    record.user(log, "Make slides of the paper.")


def choose(log: EventLog, skills: tuple[Skill, ...], name: object) -> int:
    """The model calls for a skill."""
    function = {"name": "use_skill", "arguments": f'{{"name": "{name}"}}'}
    call_id = f"c{len(log)}"
    record.assistant(log, "", tool_calls=[{"id": call_id, "type": "function", "function": function}])
    return answer(log, call_id, function, skills)


@pytest.mark.parametrize("template", ["qwen2.5-instruct", "qwen3"])
def test_the_body_comes_once_and_never_moves(
    log: EventLog,
    tok: TokenizersAdapter,
    make_template: Callable[[str], ChatTemplate],
    template: str,
) -> None:
    skills = (parse_skill(SLIDES, "x"), Skill("pdf", "a PDF is read", "Use pypdf."))
    begin(log, skills)
    working_set = WorkingSet(
        policy=ThreeZones(9000), tokenizer=SegmentTokenizer(tok), template=make_template(template)
    )
    contexts = [working_set.assemble(log)]
    assert "Write html first" not in text_of(contexts[0])
    assert "- slides: " in str(contexts[0].messages[0]["content"])
    choose(log, skills, "slides")
    for i in range(6):
        contexts.append(working_set.assemble(log))
        call(log, "bash", {"n": i}, f"output {i}", reasoning="I weigh it.")
    again = choose(log, skills, "slides")
    contexts.append(working_set.assemble(log))
    assert "stand above already" in log.text(log.event(again))
    for earlier, later in itertools.pairwise(contexts):
        assert extends(earlier, later)
    for context in contexts[1:]:
        assert text_of(context).count('<skill name="slides">\n# Slides\nWrite html first') == 1
    assert linted(contexts).breaks == ()
    assert contexts[-1].report.lint == ()


def test_the_body_stays_whole_when_turns_around_it_are_archived(
    log: EventLog, tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]
) -> None:
    skills = (parse_skill(SLIDES, "x"),)
    begin(log, skills)
    working_set = WorkingSet(
        policy=ThreeZones(4000), tokenizer=SegmentTokenizer(tok), template=make_template("qwen2.5-instruct")
    )
    for i in range(4):
        call(log, "bash", {"n": i}, f"output {i} " * 30)
    choose(log, skills, "slides")
    seen: set[bytes] = set()
    for i in range(30):
        call(log, "bash", {"n": i}, f"output {i} " * 30)
        context = working_set.assemble(log)
        (body,) = [s for s in context.segments if s.source.uri == "skill://slides"]
        seen.add(body.token_ids.tobytes())
        assert "Write html first" in text_of(context)
    assert context.report.dropped
    # Its words never change; the template's around it may, with what stands before.
    assert len(seen) <= 2


def test_a_body_with_the_real_tokenizer(log: EventLog, smollm2: tuple[tokenizers.Tokenizer, str]) -> None:
    made, source = smollm2
    skills = (parse_skill(SLIDES, "x"),)
    begin(log, skills)
    working_set = WorkingSet(
        policy=ThreeZones(9000), tokenizer=TokenizersAdapter(made), template=ChatTemplate(source)
    )
    contexts: list[Context] = []
    for i in range(5):
        contexts.append(working_set.assemble(log))
        if i == 1:
            choose(log, skills, "slides")
        call(log, "bash", {"n": i}, f"output {i}")
    assert all(extends(a, b) for a, b in itertools.pairwise(contexts))
    assert text_of(contexts[-1]).count("Write html first") == 1


def test_an_unknown_skill_is_named(log: EventLog) -> None:
    skills = (parse_skill(SLIDES, "x"),)
    begin(log, skills)
    event = log.event(choose(log, skills, "poems"))
    assert log.text(event) == "error: there is no skill 'poems'; give one of: slides"
    assert event.exit_code == 1
    assert used(log) == {}


def test_the_host_may_choose_too_and_a_skill_is_no_task(log: EventLog) -> None:
    skill = parse_skill(SLIDES, "x")
    first = use(log, skill)
    assert use(log, skill) == first
    record.user(log, "Make slides.")
    assert read_trace(log).goal == "Make slides."
    assert len(log) == 2
