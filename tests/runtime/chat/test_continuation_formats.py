"""Thirty turns in several formats: whatever a reply's ids, the next prompt begins with them."""

import random
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.chat.formats.registry import TOOL_FORMATS
from deeproot.runtime.chat.reply_format import ReplyFormat, reply_format
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import write_byte_level_folder
from .conversations import TOOLS
from .formats.writing import written
from .parsing import parse_reply
from .talks import RESULT, USER, Message, Talk, reserialised, trimmed
from .test_template_families import TEMPLATES

NAMES = {"qwen3_coder": "<|im_end|>", "deepseek_v31": "</s>", "kimi_k2": "<|im_end|>", "qwen3": "<|im_end|>"}
"""Templates, and the token that ends a turn in them."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """All marks of the sections are control tokens here, as they are in those models."""
    sections = (mark for name in ("deepseek_v31", "kimi_k2") for mark in TOOL_FORMATS[name].marks)
    turns = [
        "<s>",
        "</s>",
        "<unk>",
        "<|im_start|>",
        "<|im_end|>",
        "<|im_system|>",
        "<|im_user|>",
        "<|im_assistant|>",
    ]
    others = ["<|im_middle|>", "<|User|>", "<|Assistant|>", "<|output|>", "<|/output|>"]
    plain = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    folder = tmp_path_factory.mktemp("model")
    write_byte_level_folder(folder, [*turns, *others, *sections], plain, bos_token="<s>", eos_token="</s>")
    return Tokenizer.from_folder(folder)


def ids_of_reply(tokenizer: Tokenizer, text: str, marks: tuple[str, ...], rng: random.Random) -> list[int]:
    """Marks as the tokens that they are, and between them ids that encoding would seldom give."""
    ids: list[int] = []
    while text:
        mark = next(
            (mark for mark in marks if text.startswith(mark) and tokenizer.id_of(mark) is not None), None
        )
        size = len(mark) if mark is not None else min(rng.randint(1, 5), _to_mark(text, marks))
        ids += tokenizer.encode(text[:size], parse_special=mark is not None).tolist()
        text = text[size:]
    return ids


def _to_mark(text: str, marks: tuple[str, ...]) -> int:
    return min([at for mark in marks if (at := text.find(mark)) > 0] or [len(text)])


def received(replies: ReplyFormat, prompt: str, text: str) -> Message:
    """What a client keeps of a reply."""
    reply = parse_reply(replies.parser(prompt, TOOLS), text)
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.calls
    ]
    message: Message = {"role": "assistant", "content": reply.content or (None if calls else "")}
    message |= {"tool_calls": calls} if calls else {}
    return message | ({"reasoning_content": reply.reasoning} if reply.reasoning else {})


def a_reply(name: str, turn: int, rng: random.Random) -> str:
    calls = [
        (
            "get_weather",
            {"city": rng.choice(["Zürich", "東京", 'a "b" < c', "1"]), "days": rng.randint(0, 99)},
        ),
        ("get_time", dict[str, Any]()),
    ]
    form = TOOL_FORMATS["hermes" if name == "qwen3" else name].form
    text = written(form, calls[: rng.randint(1, 2)], ascii_only=rng.random() < 0.5)
    text = text.replace(":0<", f":{2 * turn}<").replace(":1<", f":{2 * turn + 1}<")  # Kimi counts on
    content = rng.choice(["", "I look.", "So, 21 degrees.\n\n"])
    return content + text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_thirty_turns(name: str, seed: int, tokenizer: Tokenizer) -> None:
    rng = random.Random(seed)
    template = ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), tokenizer)
    replies = reply_format(template)
    talk = Talk(template, tokenizer)
    end = tokenizer.id_of(NAMES[name])
    assert end is not None
    before: list[int] = []
    talk.messages.append(dict(USER))
    for turn in range(30):
        rendering = template.rendering(talk.messages, TOOLS, thinking=True)
        prompt = talk.continuation.prompt(rendering)
        assert prompt.token_ids[: len(before)].tolist() == before
        assert (prompt.tokens_saved > 0) == (turn > 0)
        text = a_reply(name, turn, rng)
        if name == "qwen3":
            text = f"<think>\nTurn {turn}.\n</think>\n\n{text}"
        if name == "deepseek_v31" and turn == 0:  # the prompt has opened it, as it does after a user's turn
            text = f"Hm.</think>{text}"
        ids = ids_of_reply(tokenizer, text, replies.marks, rng)
        talk.continuation.remember(prompt, [*ids, end])
        before = [*prompt.token_ids.tolist(), *ids]
        message = received(replies, rendering.text, text)
        assert message["tool_calls"]
        assert ("reasoning_content" in message) == (name == "qwen3" or (name, turn) == ("deepseek_v31", 0))
        talk.messages.append(rng.choice([lambda m: m, trimmed, reserialised])(message))
        talk.messages += [{**RESULT, "tool_call_id": c["id"]} for c in message["tool_calls"]]


def test_marks_that_a_client_spells_are_no_tokens(tokenizer: Tokenizer) -> None:
    """A reply that only looks like the remembered one, because its content spells the marks, gets none of its ids."""
    template = ChatTemplate((TEMPLATES / "kimi_k2.jinja").read_text(), tokenizer)
    replies = reply_format(template)
    talk = Talk(template, tokenizer)
    prompt = talk.ask(dict(USER))
    text = written(replies.tools.form, [("get_time", {})])
    ids = ids_of_reply(tokenizer, text, replies.marks, random.Random(0))
    talk.continuation.remember(prompt, ids)
    talk.messages.append({"role": "assistant", "content": text})
    found = talk.ask(dict(USER)).token_ids.tolist()
    assert found == talk.plain()
    mark = tokenizer.id_of("<|tool_calls_section_begin|>")
    assert mark in ids
    assert mark not in found


@pytest.mark.parametrize(
    ("family", "tools", "reasoning"),
    [
        ("qwen3", "hermes", "think"),
        ("qwen2", "hermes", None),
        ("qwen3_coder", "qwen3_coder", None),
        ("deepseek_v31", "deepseek_v31", "think"),
        ("kimi_k2", "kimi_k2", None),
        ("llama3", "llama3_json", None),
        ("mistral", "mistral", None),
        ("gemma3", "hermes", None),
        ("smollm2", "hermes", None),
        ("phi4", "hermes", None),  # a template without tools: the built-in wrapper asks for Hermes' form
    ],
)
def test_formats_by_template(family: str, tools: str, reasoning: str | None, tokenizer: Tokenizer) -> None:
    source = (Path(TEMPLATES) / f"{family}.jinja").read_text()
    found = reply_format(ChatTemplate(source, tokenizer))
    assert (found.tools.name, found.reasoning and found.reasoning.name) == (tools, reasoning)


def test_formats_by_name(tokenizer: Tokenizer) -> None:
    template = ChatTemplate((TEMPLATES / "qwen3.jinja").read_text(), tokenizer)
    found = reply_format(template, "llama4_pythonic", "none")
    assert (found.tools.name, found.reasoning) == ("pythonic", None)
    assert reply_format(None, reasoning_parser="deepseek_r1").reasoning is not None
    for names in (("nonsense", None), (None, "nonsense")):
        with pytest.raises(
            ValueError, match=r"parser nonsense is not known: leave it out, or give one of .*"
        ):
            reply_format(template, *names)
