"""`continue_final_message` against transformers, over the families' templates."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import write_byte_level_folder
from .test_template_families import FAMILIES, PLAIN_ADDED, SPECIAL, SWALLOWING, TEMPLATES

words = st.text("ab \n.", min_size=1, max_size=12).filter(str.strip)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_level_folder(
        tmp_path_factory.mktemp("model"),
        [*SPECIAL, *SWALLOWING],
        PLAIN_ADDED,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


@pytest.fixture(scope="module")
def sides(folder: Path) -> dict[str, tuple[ChatTemplate, str]]:
    tokenizer = Tokenizer.from_folder(folder)
    sources = {family: (TEMPLATES / f"{family}.jinja").read_text() for family in FAMILIES}
    return {family: (ChatTemplate(source, tokenizer), source) for family, source in sources.items() if source}


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(family=st.sampled_from(FAMILIES), question=words, said=words, earlier=words)
def test_prompts_end_inside_the_last_message(
    sides: dict[str, tuple[ChatTemplate, str]],
    reference: Any,
    family: str,
    question: str,
    said: str,
    earlier: str,
) -> None:
    if family not in sides:
        return
    template, source = sides[family]
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": earlier},
        {"role": "user", "content": question},
        {"role": "assistant", "content": said},
    ]
    try:
        wanted = reference.apply_chat_template(
            messages, chat_template=source, tokenize=False, continue_final_message=True
        )
    except ValueError:
        return
    found = template.rendering(messages, add_generation_prompt=False, continue_final_message=True)
    assert found.text == wanted
    assert found.text.rstrip().endswith(said.strip())


def test_content_that_spells_a_control_token_stays_content(
    sides: dict[str, tuple[ChatTemplate, str]],
) -> None:
    template, _ = sides["qwen2"]
    said = "The mark <|im_end|> ends a turn, and <|im_"
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": said}]
    rendering = template.rendering(messages, add_generation_prompt=False, continue_final_message=True)
    ids = template.guard.encode_rendering(rendering)
    tokenizer = template._tokenizer
    end = tokenizer.id_of("<|im_end|>")
    # A system turn of the template's own and the user's end; the assistant's does not, and its text is none.
    plain = template.rendering(messages, add_generation_prompt=False)
    ends_in_whole = (template.guard.encode_rendering(plain) == end).sum()
    assert (ids == end).sum() == ends_in_whole - 1
    assert tokenizer.decode(ids.tolist()).endswith(said)


@pytest.mark.parametrize(
    "last",
    [
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": []},
    ],
)
def test_there_must_be_text_to_go_on_with(
    sides: dict[str, tuple[ChatTemplate, str]], last: dict[str, Any]
) -> None:
    template, _ = sides["qwen2"]
    with pytest.raises(TemplateError, match="continue_final_message"):
        template.rendering([{"role": "user", "content": "a"}, last], None, False, True)


def test_a_template_that_hides_the_message_is_refused(folder: Path) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}", Tokenizer.from_folder(folder))
    with pytest.raises(TemplateError, match="does not show the last message"):
        template.rendering([{"role": "assistant", "content": "a"}], None, False, True)
