"""Replies come back as the ids that the model wrote, and nothing else comes of it."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.formats.json_calls import HERMES
from deeproot.runtime.chat.reply_format import ReplyFormat, reply_format
from deeproot.runtime.chat.reply_match import same_reply
from deeproot.runtime.chat.reply_memory import Reply, ReplyMemory
from deeproot.runtime.chat.tokenizer import Tokenizer

from .conftest import write_byte_level_folder
from .conversations import TOOLS
from .talks import (
    CALL,
    OTHER,
    RESULT,
    TEXTS,
    USER,
    Change,
    Talk,
    family,
    nulls_dropped,
    received,
    reserialised,
    trimmed,
)
from .test_template_families import PLAIN_ADDED, SPECIAL, SWALLOWING

# Not Phi-3 and Phi-4: their tokens, here, swallow white space that the model itself may well write.
APPENDING = ["chatml", "smollm2", "qwen2", "qwen3", "llama3", "gemma3"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    folder = tmp_path_factory.mktemp("model")
    return Tokenizer.from_folder(
        write_byte_level_folder(folder, [*SPECIAL, *SWALLOWING], PLAIN_ADDED, **names)
    )


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
