"""The shapes of the families' chat templates, rendered and tokenised by transformers and by us."""

import copy
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import write_byte_level_folder
from .conversations import PLAIN, TOOLS, WITH_CALLS

TEMPLATES = Path(__file__).parent / "templates"
FAMILIES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SPECIAL = [
    "<s>",
    "</s>",
    "<unk>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
]
# Phi-3's tokens swallow the white space after them.
SWALLOWING = [
    AddedToken(t, special=True, normalized=False, rstrip=True)
    for t in ("<|user|>", "<|assistant|>", "<|end|>")
]
PLAIN_ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


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
def theirs(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


def source_of(family: str) -> str:
    return (TEMPLATES / f"{family}.jinja").read_text()


def with_objects(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments as objects, which transformers leaves to its caller."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def compare(
    theirs: Any, ours: Tokenizer, family: str, messages: list[dict[str, Any]], **options: Any
) -> bool:
    """Same text and ids from both, or an error from both; returns whether there was a prompt."""
    source, template = source_of(family), ChatTemplate(source_of(family), ours)
    try:
        text = theirs.apply_chat_template(
            with_objects(messages), chat_template=source, tokenize=False, **options
        )
    except jinja2.TemplateError:
        with pytest.raises(TemplateError):
            template.token_ids(messages, **options)
        return False
    ids = theirs.apply_chat_template(
        with_objects(messages), chat_template=source, return_dict=False, **options
    )
    assert template.render(messages, **options) == text
    assert template.token_ids(messages, **options).tolist() == ids
    return True


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("conversation", PLAIN)
@pytest.mark.parametrize("family", FAMILIES)
def test_plain(
    theirs: Any, ours: Tokenizer, family: str, conversation: str, add_generation_prompt: bool
) -> None:
    messages = PLAIN[conversation]
    if family == "gemma2" and messages[0]["role"] == "system":
        return  # transformers refuses, we do not: see test_template
    if family == "chatml_unthinking" and conversation == "reasoning apart":
        return  # transformers drops it, we show it where this template looks for it: see test_template
    assert compare(theirs, ours, family, messages, add_generation_prompt=add_generation_prompt)


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("conversation", [*WITH_CALLS, "one turn", "system"])
@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2", "qwen3", "features"])
def test_with_tools(theirs: Any, ours: Tokenizer, family: str, conversation: str, tools: Any) -> None:
    messages = {**WITH_CALLS, **PLAIN}[conversation]
    rendered = compare(theirs, ours, family, messages, tools=tools, add_generation_prompt=True)
    assert rendered != (family == "llama3" and conversation == "parallel")  # one call a turn


@pytest.mark.parametrize("options", [{"enable_thinking": False}, {"enable_thinking": True}])
def test_template_arguments(theirs: Any, ours: Tokenizer, options: dict[str, Any]) -> None:
    assert compare(theirs, ours, "qwen3", PLAIN["one turn"], add_generation_prompt=True, **options)
    assert compare(
        theirs,
        ours,
        "llama3",
        PLAIN["system"],
        tools=TOOLS,
        tools_in_user_message=False,
        add_generation_prompt=True,
    )


def test_lists_of_parts_reach_templates_that_take_them(theirs: Any, ours: Tokenizer) -> None:
    parts = [{"type": "text", "text": " a "}, {"type": "text", "text": "b "}]
    messages = [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts}]
    assert compare(theirs, ours, "gemma3", messages, add_generation_prompt=True)


def test_roles_out_of_order_are_refused_by_both(theirs: Any, ours: Tokenizer) -> None:
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for family in ("mistral", "gemma2", "gemma3"):
        assert not compare(theirs, ours, family, twice, add_generation_prompt=True)
    with pytest.raises(TemplateError, match="refuses this conversation: user and assistant take turns"):
        ChatTemplate(source_of("gemma2"), ours).render(twice)


def test_the_real_model(smol: Tokenizer, smol_metadata: dict[str, Any], transformers_smol: Any) -> None:
    template = ChatTemplate(smol_metadata["tokenizer.chat_template"], smol)
    for messages in PLAIN.values():
        ids = transformers_smol.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert template.token_ids(messages).tolist() == ids
