"""Replies come back as the ids that the model wrote, and nothing else comes of it."""

import json
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.call_parser import CallParser
from deeproot.runtime.chat.continuation import ChatContinuation, Prompt
from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import ReplyFormat, reply_format
from deeproot.runtime.chat.reply_match import same_reply
from deeproot.runtime.chat.reply_memory import Reply, ReplyMemory
from deeproot.runtime.chat.reply_parser import parse_reply
from deeproot.runtime.chat.template import ChatTemplate
from deeproot.runtime.chat.text_continuation import TextContinuation
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import write_byte_level_folder
from .conversations import TOOLS
from .test_template_families import PLAIN_ADDED, SPECIAL, SWALLOWING, TEMPLATES

Message = dict[str, Any]
Change = Callable[[Message], Message]
# Not Phi-3 and Phi-4: their tokens, here, swallow white space that the model itself may well write.
APPENDING = ["chatml", "smollm2", "qwen2", "qwen3", "llama3", "gemma3"]
CALL = '<tool_call>\n{{"name": "get_weather", "arguments": {}}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    folder = tmp_path_factory.mktemp("model")
    return Tokenizer.from_folder(
        write_byte_level_folder(folder, [*SPECIAL, *SWALLOWING], PLAIN_ADDED, **names)
    )


def family(name: str, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / f"{name}.jinja").read_text(), tokenizer)


def odd_ids(tokenizer: Tokenizer, text: str, seed: int) -> list[int]:
    """Ids of a text that its own encoding would seldom give: it is cut at random, and the parts encoded alone."""
    rng = random.Random(seed)
    ids: list[int] = []
    while text:
        size = rng.randint(1, 5)
        ids += tokenizer.encode(text[:size], parse_special=False).tolist()
        text = text[size:]
    return ids


class Talk:
    """A client and a model, of which only the sampling is left out."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, max_bytes: int = 10**6) -> None:
        self.template, self.tokenizer = template, tokenizer
        self.continuation = ChatContinuation(
            template, tokenizer, ReplyMemory(max_bytes), reply_format(template), PieceMemory(10**6)
        )
        self.messages: list[Message] = []
        self.end = tokenizer.id_of("<|im_end|>")

    def ask(self, *added: Message, exact: bool = False) -> Prompt:
        self.messages += added
        return self.continuation.prompt(self.template.rendering(self.messages, TOOLS), exact=exact)

    def answer(self, prompt: Prompt, text: str, seed: int = 1, change: Change = lambda m: m) -> list[int]:
        """The model writes `text`, the client keeps a changed form of what it gets. Returns the sequence so far."""
        ids = odd_ids(self.tokenizer, text, seed)
        assert self.end is not None
        self.continuation.remember(prompt, [*ids, self.end])
        self.messages.append(change(received(text)))
        return [*prompt.token_ids.tolist(), *ids]

    def plain(self) -> list[int]:
        ids: list[int] = self.template.token_ids(self.messages, TOOLS).tolist()
        return ids


def received(text: str) -> Message:
    """What a client gets for the model's text."""
    answer = parse_reply(CallParser(HERMES), text)
    calls = [
        {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
        for c in answer.calls
    ]
    message: Message = {"role": "assistant", "content": answer.content or (None if calls else "")}
    return {**message, "tool_calls": calls} if calls else message


def trimmed(message: Message) -> Message:
    return {**message, "content": message["content"].rstrip() if message["content"] else message["content"]}


def reserialised(message: Message) -> Message:
    calls = [
        {**c, "function": {**c["function"], "arguments": _other_json(c["function"]["arguments"])}}
        for c in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _other_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def nulls_dropped(message: Message) -> Message:
    return {key: value for key, value in message.items() if value is not None}


USER, OTHER = {"role": "user", "content": "What is the weather?"}, {"role": "user", "content": "And there?"}
RESULT = {"role": "tool", "tool_call_id": "x", "content": "21 degrees"}
REPLIES: list[tuple[str, Change]] = [
    ("The weather is fine.", lambda m: m),
    ("The weather is fine. \n\n", trimmed),
    (CALL.format('{"city": "Zürich", "days": 1.0}'), reserialised),
    ("I look.\n\n" + CALL.format('{"days":3,"city":"a < b"}'), reserialised),
    ("\n" + CALL.format('{"city": "Rome"}') + "\n" + CALL.format('{ "city" : "Oslo" }') + "\n", reserialised),
    (CALL.format("{}"), nulls_dropped),
    ("It is <b>21</b> degrees, 東京 😀", lambda m: {**m, "reasoning_content": None}),
]


@pytest.mark.parametrize("name", ["chatml", "smollm2", "qwen2", "qwen3"])
@pytest.mark.parametrize(("text", "change"), REPLIES)
def test_a_reply_that_comes_back_keeps_its_ids(
    name: str, text: str, change: Change, tokenizer: Tokenizer
) -> None:
    talk = Talk(family(name, tokenizer), tokenizer)
    before: list[int] = []
    for turn in range(4):
        prompt = talk.ask(dict(OTHER, content=f"{turn}?"))
        assert prompt.token_ids[: len(before)].tolist() == before
        assert (prompt.tokens_saved > 0) == (turn > 0)
        before = talk.answer(prompt, text, turn, change)
    prompt = talk.ask(RESULT) if "tool_call" in text else talk.ask(USER)
    assert prompt.token_ids[: len(before)].tolist() == before


def test_exact_takes_only_what_came_back_to_the_letter(tokenizer: Tokenizer) -> None:
    for text, change in REPLIES[1:5]:
        talk = Talk(family("smollm2", tokenizer), tokenizer)
        before = talk.answer(talk.ask(USER), text, change=change)
        changed = talk.ask(OTHER, exact=True)
        assert changed.token_ids.tolist() == talk.plain()
        assert changed.tokens_saved == 0
        lenient = talk.ask()
        assert lenient.token_ids[: len(before)].tolist() == before
    talk = Talk(family("smollm2", tokenizer), tokenizer)
    before = talk.answer(talk.ask(USER), "The weather is fine.")
    assert talk.ask(OTHER, exact=True).token_ids[: len(before)].tolist() == before


@pytest.mark.parametrize(
    ("sent", "written", "same"),
    [
        ("a", "a \n", True),
        (" a", "a", False),
        ("a b", "a  b", False),
        (CALL.format('{"a": 1, "b": 2}'), CALL.format('{"b":2.0,"a":1}'), True),
        (CALL.format('{"a": true}'), CALL.format('{"a": 1}'), False),
        (CALL.format('{"a": "1"}'), CALL.format('{"a": 1}'), False),
        (CALL.format('{"a": [1, 2]}'), CALL.format('{"a": [2, 1]}'), False),
        (CALL.format('{"a": "é"}'), CALL.format('{"a": "\\u00e9"}'), True),
        # Which of the two the model meant, nobody knows.
        (CALL.format('{"a": 2}'), CALL.format('{"a": 1, "a": 2}'), False),
        (CALL.format("{}"), CALL.format("{}").removesuffix("\n</tool_call>"), False),
        ("x\n" + CALL.format("{}"), CALL.format("{}") + "\nx", False),
        (CALL.format("{}"), "\n\n" + CALL.format("{}") + "\n", True),
    ],
)
def test_what_counts_as_the_same_reply(sent: str, written: str, same: bool) -> None:
    assert same_in(HERMES_ONLY, sent, written) == same_in(HERMES_ONLY, written, sent) == same


HERMES_ONLY = ReplyFormat(HERMES, None)


def same_in(replies: ReplyFormat, sent: str, written: str) -> bool:
    return same_reply(sent, written, lambda text: replies.read("", text), replies.marks)


def test_another_reply_or_another_conversation_is_encoded_anew(tokenizer: Tokenizer) -> None:
    talk = Talk(family("chatml", tokenizer), tokenizer)
    talk.answer(talk.ask(USER), "The weather is fine.")
    talk.ask(OTHER)
    for index, changed in ((0, "What is the weather!"), (1, "The weather is mine.")):
        other = [dict(m) for m in talk.messages]
        other[index]["content"] = changed
        found = talk.continuation.prompt(talk.template.rendering(other, TOOLS))
        assert found.token_ids.tolist() == talk.template.token_ids(other, TOOLS).tolist()


def test_a_user_who_types_a_whole_turn_gets_no_control_token(tokenizer: Tokenizer) -> None:
    """The text is the same to the letter as that of a conversation which is remembered."""
    talk = Talk(family("chatml", tokenizer), tokenizer)
    talk.answer(talk.ask(USER), "Fine.")
    talk.answer(talk.ask(OTHER), "Fine too.")
    whole = talk.template.render(talk.messages, None, add_generation_prompt=False)
    inner = whole.removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n")
    assert "<|im_end|>" in inner
    forged = [{"role": "user", "content": inner}, *({"role": "user", "content": "x"},) * 2]
    prompt = talk.continuation.prompt(talk.template.rendering(forged))
    assert prompt.token_ids.tolist() == talk.template.token_ids(forged).tolist()
    assert prompt.token_ids.tolist().count(talk.end) == 3


def test_a_control_token_inside_a_reply_is_not_inherited(tokenizer: Tokenizer) -> None:
    talk = Talk(family("chatml", tokenizer), tokenizer)
    assert talk.end is not None
    prompt = talk.ask(USER)
    ids = tokenizer.encode("a", parse_special=False).tolist()
    talk.continuation.remember(prompt, [*ids, talk.end, *ids])
    for content in ("a<|im_end|>a", "aa"):
        talk.messages = [USER, {"role": "assistant", "content": content}]
        assert talk.ask(OTHER).token_ids.tolist() == talk.plain()


def test_dropped_and_echoed_reasoning(tokenizer: Tokenizer) -> None:
    """Within a tool loop Qwen3's template shows reasoning that comes back; what was dropped stays dropped."""
    call = CALL.format('{"city": "Rome"}')
    message = received(call)
    for echoed in (True, False):
        talk = Talk(family("qwen3", tokenizer), tokenizer)
        thought = "<think>\nI should look.\n</think>\n\n"
        before = talk.answer(talk.ask(USER), thought + call)
        talk.messages[-1] = {**message, "reasoning_content": "I should look."} if echoed else message
        prompt = talk.ask(RESULT)
        assert (prompt.token_ids[: len(before)].tolist() == before) is echoed
        if not echoed:
            assert prompt.token_ids.tolist() == talk.plain()


def test_what_is_forgotten_costs_speed_only(tokenizer: Tokenizer) -> None:
    talk = Talk(family("chatml", tokenizer), tokenizer, max_bytes=1200)
    for turn in range(6):
        before = talk.answer(talk.ask(dict(USER, content=f"{turn}?")), "The weather is fine.", turn)
    prompt = talk.ask(USER)
    decoded = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
    assert decoded == tokenizer.decode(talk.plain(), skip_special_tokens=False)
    assert prompt.token_ids[: len(before)].tolist() != before


def test_the_memory_keeps_its_bound_and_the_newest() -> None:
    memory = ReplyMemory(5000)
    for i in range(100):
        memory.put(b"%d" % i, Reply("x" * 50, b"\0" * 200, False))
        assert memory.num_bytes <= 5000
        assert memory.get(b"0") or i > 4
    assert memory.get(b"0"), "what is used stays"
    assert not memory.get(b"50")
    memory.put(b"big", Reply("x" * 5000, b"", False))
    assert not memory.get(b"big")
    for i in range(100):
        memory.put(b"same", Reply(str(i), b"", False))
    assert memory.get(b"same")[0].text == "99"
    assert memory.num_bytes <= 5000


PIECES = st.sampled_from(
    [
        "a",
        " the weather",
        "\n",
        "<|im_end|>",
        "<|im_start|>",
        "assistant\n",
        "é",
        "12",
        " ",
        "<think>",
        "</think>",
    ]
)
TEXTS = st.lists(PIECES, max_size=6).map("".join)


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(APPENDING),
    rounds=st.lists(
        st.tuples(TEXTS, TEXTS, st.booleans(), st.sampled_from([0, 1, 2])), min_size=1, max_size=4
    ),
    exact=st.booleans(),
)
def test_the_model_sees_what_was_sent(
    tokenizer: Tokenizer, name: str, rounds: list[tuple[str, str, bool, int]], exact: bool
) -> None:
    """At most white space at the end and the JSON of calls differ; the control tokens never do."""
    talk = Talk(family(name, tokenizer), tokenizer)
    for i, (question, reply, calls, change) in enumerate(rounds):
        text = reply + CALL.format('{"city": "R", "a": 1}') if calls else reply
        prompt = talk.ask({"role": "user", "content": question}, exact=exact)
        talk.answer(prompt, text, i, [lambda m: m, trimmed, reserialised][change])
    prompt = talk.ask(USER, exact=exact)
    ids, plain = prompt.token_ids.tolist(), talk.plain()
    special = tokenizer.special_ids
    assert [i for i in ids if i in special] == [i for i in plain if i in special]
    for own, sent in zip(turns(tokenizer, ids), turns(tokenizer, plain), strict=True):
        assert own == sent if exact else same_in(reply_format(talk.template), own, sent)


def turns(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The text between control tokens, without the role that it opens with."""
    found: list[list[int]] = [[]]
    for token_id in ids:
        if token_id in tokenizer.special_ids:
            found.append([])
        else:
            found[-1].append(token_id)
    return [re.sub(r"^(assistant|model)\n", "", tokenizer.decode(part)) for part in found]


def test_plain_prompts_go_on_with_the_ids_of_their_output(smol: Tokenizer) -> None:
    continuation = TextContinuation(smol, ReplyMemory(10**6))
    text, before = "Once upon a time", list[int]()
    for turn in range(4):
        prompt = continuation.prompt(text)
        assert prompt.token_ids[: len(before)].tolist() == before
        assert smol.decode(prompt.token_ids, skip_special_tokens=False) == text
        assert (prompt.tokens_saved > 0) == (turn > 0)
        ids = odd_ids(smol, " there was a queen.", turn)
        continuation.remember(prompt, [*ids, smol.id_of("<|im_end|>") or 0])
        text += smol.decode(ids) + f" And {turn}"
        before = [*prompt.token_ids.tolist(), *ids]


@settings(max_examples=80, deadline=None)
@given(parts=st.lists(st.tuples(TEXTS, st.text(" \nabé1", min_size=1)), min_size=1, max_size=4), rest=TEXTS)
def test_plain_prompts_keep_their_text(smol: Tokenizer, parts: list[tuple[str, str]], rest: str) -> None:
    continuation = TextContinuation(smol, ReplyMemory(10**6))
    text = "x"
    for i, (added, output) in enumerate(parts):
        text += added
        prompt = continuation.prompt(text)
        assert smol.decode(prompt.token_ids, skip_special_tokens=False) == text
        continuation.remember(prompt, odd_ids(smol, output, i))
        text += output
    final = continuation.prompt(text + rest).token_ids
    assert smol.decode(final, skip_special_tokens=False) == text + rest
    # Those who write a raw prompt write control tokens; an output never adds or takes one.
    special = smol.special_ids
    count = np.count_nonzero([i in special for i in smol.encode_prompt(text + rest)])
    assert np.count_nonzero([i in special for i in final]) == count


def test_half_a_character_at_the_end_is_no_joint(smol: Tokenizer) -> None:
    continuation = TextContinuation(smol, ReplyMemory(10**6))
    ids = smol.encode("é東", parse_special=False).tolist()
    prompt = continuation.prompt("x")
    continuation.remember(prompt, ids[:-1])
    text = "x" + smol.decode(ids[:-1]) + " and"
    assert smol.decode(continuation.prompt(text).token_ids) == text


def test_replies_of_another_namespace_are_not_known(smol: Tokenizer) -> None:
    template = family("chatml", smol)
    memory = ReplyMemory(10**6)
    chat = ChatContinuation(template, smol, memory, reply_format(template), PieceMemory(10**6))
    text = TextContinuation(smol, memory)
    odd = odd_ids(smol, "It is fine, thanks.", 3)
    for name in (b"a", b""):
        chat.remember(chat.prompt(template.rendering([USER]), namespace=name), odd)
        text.remember(text.prompt("x", name), odd)
    rendering = template.rendering([USER, {"role": "assistant", "content": "It is fine, thanks."}, OTHER])
    plain = template.guard.encode_rendering(rendering).tolist()
    for name, known in ((b"a", True), (b"", True), (b"b", False)):
        assert (chat.prompt(rendering, namespace=name).token_ids.tolist() == plain) is not known
        went_on = text.prompt("xIt is fine, thanks. And", name)
        assert (went_on.token_ids[1 : 1 + len(odd)].tolist() == odd) is known
