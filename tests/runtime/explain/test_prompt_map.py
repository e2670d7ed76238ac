"""Where tokens come from, for conversations of any text and templates of every shape."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.engine.gguf import GGUFFile
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.explain.history import Chat
from deeproot.runtime.explain.prompt_map import _num_common, map_prompt, place_of

from .conversation import TEMPLATES, Message, tool

FAMILIES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
PIECES = [
    "a",
    " the weather",
    "\n",
    "<|im_end|>",
    "<|im_start|>",
    "é",
    "12",
    " ",
    "<think>",
    "</think>",
    '{"a": 1}',
    "\t",
]
texts = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@pytest.fixture(scope="module")
def smol(smollm2_path: Path) -> Tokenizer:
    with GGUFFile(smollm2_path) as file:
        return Tokenizer.from_gguf(file.metadata)


@pytest.fixture(scope="module")
def templates(smol: Tokenizer) -> dict[str, ChatTemplate]:
    return {name: ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), smol) for name in FAMILIES}


def conversation(said: list[tuple[str, str]]) -> list[Message]:
    """User and assistant in turn, each with a word of its own between two texts."""
    roles = ("user", "assistant")
    return [
        {"role": roles[i % 2], "content": f"{before}word{i}word{after}"}
        for i, (before, after) in enumerate(said)
    ]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(
    said=st.lists(st.tuples(texts, texts), min_size=1, max_size=5), system=st.booleans(), tools=st.booleans()
)
def test_each_word_is_found_in_its_message(
    smol: Tokenizer,
    templates: dict[str, ChatTemplate],
    family: str,
    said: list[tuple[str, str]],
    system: bool,
    tools: bool,
) -> None:
    template = templates[family]
    messages = conversation(said[: len(said) // 2 * 2 + 1 - (len(said) % 2 == 0)])
    if system:
        messages = [{"role": "system", "content": "word99word rules"}, *messages]
    chat = Chat(messages, [tool("toolword")] if tools else [], {})
    try:
        ids = template.token_ids(chat.messages, chat.tools)
    except TemplateError:
        return
    found = map_prompt(template, smol, chat)
    assert found is not None, "the marks changed the text"
    text = smol.decode(ids, skip_special_tokens=False)
    sizes = [len(smol.pieces[i]) for i in ids.tolist()]
    starts = np.cumsum([0, *sizes])
    data = text.encode()
    if int(starts[-1]) != len(data):
        return  # half a character somewhere: offsets in bytes would not be those of the text
    for i, message in enumerate(messages):
        name = message["content"][message["content"].index("word") :][:6].encode()
        if data.count(name) != 1:
            continue  # thinking that the template leaves out
        # The first token that begins in the word: the one before may begin in the template's words.
        token = int(np.searchsorted(starts, data.index(name)))
        spot = found.at(place_of(smol, ids, token))
        assert spot.origin is not None
        assert (spot.origin.message, spot.literal) == (i, False)
    if tools and data.count(b"toolword") >= 1:
        token = int(np.searchsorted(starts, data.index(b"toolword")))
        spot = found.at(place_of(smol, ids, token))
        assert spot.origin is not None
        assert spot.origin.name == "tools"


def test_the_templates_own_words(smol: Tokenizer, templates: dict[str, ChatTemplate]) -> None:
    chat = Chat([{"role": "user", "content": "Hello there"}], (), {})
    template = templates["chatml"]
    ids = template.token_ids(chat.messages)
    found = map_prompt(template, smol, chat)
    assert found is not None
    spots = [found.at(place_of(smol, ids, token)) for token in range(len(ids) + 1)]
    words = smol.decode(ids, skip_special_tokens=False)
    assert words.startswith("<|im_start|>user\nHello there<|im_end|>")
    assert [spot.literal for spot in spots[:3]] == [True, True, True]
    assert any(spot.origin is not None and not spot.literal for spot in spots)
    assert spots[-1].origin is None


def test_a_template_that_does_not_let_marks_through(smol: Tokenizer) -> None:
    source = "<|im_start|>{{ messages[0].content | upper | length }}"
    chat: Any = Chat([{"role": "user", "content": "Hello there"}], (), {})
    assert map_prompt(ChatTemplate(source, smol), smol, chat) is None
    refusing = ChatTemplate("{{ raise_exception('no') }}", smol)
    assert map_prompt(refusing, smol, chat) is None


@given(one=st.text(alphabet="ab", max_size=40), other=st.text(alphabet="ab", max_size=40))
def test_how_far_texts_are_the_same(one: str, other: str) -> None:
    same = [a == b for a, b in zip(one, other, strict=False)]
    assert _num_common(one, other) == len(list(itertools.takewhile(bool, same)))
    assert _num_common(one + other, one) == len(one)
