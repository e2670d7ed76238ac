"""Which templates change earlier text, and at which turn."""

from datetime import datetime
from pathlib import Path

import pytest

from deeproot.runtime.chat.append_only import find_breaks, summary
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

TEMPLATES = Path(__file__).parent / "templates"
THINKING = {"thinking turn"}
EXPECTED: dict[str, set[str]] = {
    "chatml": set(),
    "smollm2": set(),
    "chatml_unthinking": THINKING,
    "qwen2": set(),
    "qwen3": {"empty think section", *THINKING},
    "deepseek": THINKING,
    "gemma2": set(),
    "gemma3": set(),
    "phi3": set(),
    "phi4": set(),
    "llama3": {"another day"},
    # Its system turn and its tools stand in the last user turn, wherever that is.
    "mistral": {"user turn", "user turn with tools", "tool result", "tool call", "parallel call"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_turn_where_a_family_breaks_is_named(name: str, smol: Tokenizer) -> None:
    breaks = find_breaks(ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), smol))
    assert {item.turn for item in breaks if not item.refused} == EXPECTED[name]
    refused = {item.turn for item in breaks if item.refused}
    assert refused == ({"parallel call"} if name == "llama3" else set())
    for item in breaks:
        assert item.after
        assert item.turn in summary(breaks)
        assert item.refused or item.before[:1] != item.after[:1]
    assert ("append-only" in summary(breaks)) == (not EXPECTED[name])


def test_what_stood_there_and_what_stands_there_now(smol: Tokenizer) -> None:
    turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    opening = "{% if add_generation_prompt %}assistant: {% endif %}"
    source = "{{ strftime_now('%d %b %Y') }}|" + turns + opening
    (broken,) = find_breaks(ChatTemplate(source, smol))
    assert broken.turn == "another day"
    assert broken.before.startswith("05 Mar 2024|")
    assert broken.after.startswith("26 Nov 2025|")


def test_a_count_of_messages_in_the_head_is_found(smol: Tokenizer) -> None:
    source = "{{ messages | length }} messages\n{% for m in messages %}{{ m.content }}\n{% endfor %}"
    turns = {item.turn for item in find_breaks(ChatTemplate(source, smol))}
    assert {"user turn", "tool call", "tool result", "parallel call"} <= turns


def test_the_clock_of_a_template_is_left_alone(smol: Tokenizer) -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}", smol, now=lambda: datetime(1999, 1, 1))
    find_breaks(template)
    assert template.render([{"role": "user", "content": "a"}]) == "1999"


@pytest.mark.parametrize("name", EXPECTED)
def test_kept_thinking_mends_what_thinking_breaks(name: str, smol: Tokenizer) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    breaks = find_breaks(ChatTemplate(source, smol, keep_thinking=True))
    mended = {"empty think section", "thinking turn"}
    assert {item.turn for item in breaks if not item.refused} == EXPECTED[name] - mended


def test_kept_thinking_changes_nothing_where_nothing_is_dropped(smol: Tokenizer) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b\n"},
        {"role": "user", "content": "c <|im_end|>"},
    ]
    for name in ("chatml", "qwen2", "qwen3"):
        source = (TEMPLATES / f"{name}.jinja").read_text()
        plain, kept = ChatTemplate(source, smol), ChatTemplate(source, smol, keep_thinking=True)
        assert kept.token_ids(messages).tolist() == plain.token_ids(messages).tolist()


def test_kept_thinking_brings_no_control_token(smol: Tokenizer) -> None:
    """What a reply says is put in after the template has run, and is content all the same."""
    template = ChatTemplate((TEMPLATES / "qwen3.jinja").read_text(), smol, keep_thinking=True)
    talk = [
        {"role": "user", "content": "a \ufdd41\ufdd5"},
        {"role": "assistant", "content": "<think>\n<|im_end|>\n</think>\n\nb<|im_end|>"},
        {"role": "user", "content": "c"},
    ]
    ids = template.token_ids(talk).tolist()
    assert ids.count(smol.id_of("<|im_end|>")) == 3


def test_kept_thinking_keeps_reasoning_that_comes_apart(smol: Tokenizer) -> None:
    template = ChatTemplate((TEMPLATES / "qwen3.jinja").read_text(), smol, keep_thinking=True)
    question = {"role": "user", "content": "a"}
    inside = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}
    apart = {"role": "assistant", "content": "b", "reasoning_content": "hm"}
    assert template.render([question, apart, question]) == template.render([question, inside, question])
    assert "<think>\nhm\n</think>\n\nb<|im_end|>" in template.render([question, apart, question])
