"""Spans of templates that run in processes of their own: as in this process, and no harm comes of them."""

import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.context.spans import ChatMessage, Part, Span
from deeproot.runtime.context.template import ChatTemplate

from ...helpers.bad_templates import HARM, HARMFUL
from .template_names import SPECIALS, TEMPLATES
from .test_template import CALLS, TOOLS, chat

NOON = datetime(2024, 2, 29, 12)


@pytest.fixture(scope="module")
def processes() -> Iterator[TemplateProcesses]:
    """With time enough for a busy machine."""
    made = TemplateProcesses(60.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def impatient() -> Iterator[TemplateProcesses]:
    made = TemplateProcesses(1.0, max_processes=1)
    yield made
    made.close()


def outcome(work: Callable[[], list[Span]]) -> list[Span] | str:
    """What it gives, or why it is refused."""
    try:
        return work()
    except TemplateError as error:
        return str(error)


texts = st.text(st.characters(codec=None), max_size=12) | st.sampled_from(
    ["<|im_end|>", "<think>hm</think>", " user "]
)
messages = st.builds(
    ChatMessage,
    st.sampled_from(["system", "user", "assistant", "tool", "im_end"]),
    st.lists(
        st.builds(Part, texts, st.text(max_size=3) | st.tuples(st.integers())), min_size=1, max_size=3
    ).map(tuple),
    st.just({}) | st.just({"tool_calls": CALLS}) | st.dictionaries(st.sampled_from(["name", "x"]), texts),
)


@pytest.mark.parametrize("name", [*TEMPLATES, "odd"])
@settings(max_examples=15, deadline=None)
@given(
    conversation=st.lists(messages, max_size=4),
    tools=st.sampled_from([[], TOOLS]),
    prompt=st.booleans(),
    variables=st.dictionaries(st.sampled_from(["enable_thinking", "y"]), st.booleans() | texts),
)
def test_the_same_spans_as_in_this_process(
    name: str,
    make_template: Callable[[str], ChatTemplate],
    processes: TemplateProcesses,
    conversation: list[ChatMessage],
    tools: list[dict[str, Any]],
    prompt: bool,
    variables: dict[str, Any],
) -> None:
    odd = "{% for m in messages %}{{ m.content | reverse }}{{ m | tojson }}{% endfor %}{{ strftime_now('%d %b') }}"
    source = odd if name == "odd" else make_template(name).source
    here = ChatTemplate(source, special_texts=SPECIALS, now=lambda: NOON)
    there = ChatTemplate(source, special_texts=SPECIALS, now=lambda: NOON, processes=processes)
    given: dict[str, Any] = {
        "tools": tools, "tools_segment": "t", "add_generation_prompt": prompt, "variables": variables,
    }  # fmt: skip
    expected = outcome(lambda: here.render(conversation, **given))
    assert outcome(lambda: there.render(conversation, **given)) == expected


def test_what_is_no_template_is_refused_alike(processes: TemplateProcesses) -> None:
    with pytest.raises(TemplateError) as here:
        ChatTemplate("ok\n{% if %}")
    with pytest.raises(TemplateError) as there:
        ChatTemplate("ok\n{% if %}", processes=processes)
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize("harm", HARM)
def test_harm_is_stopped_and_the_next_rendering_works(impatient: TemplateProcesses, harm: str) -> None:
    template = ChatTemplate(HARMFUL, processes=impatient)
    with pytest.raises(TemplateError, match=HARM[harm]):
        template.render(chat(("user", harm)))
    assert template.render(chat(("user", "b"))) == ChatTemplate(HARMFUL).render(chat(("user", "b")))


def test_one_that_hangs_while_it_is_tried_is_refused(impatient: TemplateProcesses) -> None:
    ChatTemplate(HARMFUL, processes=impatient).render(chat(("user", "b")))
    before = impatient.pids
    with pytest.raises(TemplateError, match=HARM["HANG"]):
        ChatTemplate(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            processes=impatient,
        )
    assert not set(before) & set(impatient.pids)


def test_a_process_that_was_killed_is_replaced(processes: TemplateProcesses) -> None:
    template = ChatTemplate(HARMFUL, processes=processes)
    before = template.render(chat(("user", "b")))
    for pid in processes.pids:
        os.kill(pid, signal.SIGKILL)
    assert template.render(chat(("user", "b"))) == before


def test_processes_that_nobody_holds_end() -> None:
    processes = TemplateProcesses(60.0)
    template = ChatTemplate(HARMFUL, processes=processes)
    (pid,) = processes.pids
    del processes, template
    assert not Path(f"/proc/{pid}").exists()


def test_nesting_beyond_what_json_takes_is_an_error(processes: TemplateProcesses) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    template = ChatTemplate(HARMFUL, processes=processes)
    with pytest.raises(TemplateError, match="nested too deeply"):
        template.render([ChatMessage("user", (Part("a", 0),), {"x": deep})])
