"""Replies that come back changed: other ids, other words, white space, JSON and thinking."""

import pytest

from deeproot.runtime.chat.tokenizer import Tokenizer
from deeproot.runtime.explain.report import Cause

from .conversation import ANSWER, ASK, MORE, RULES, TALK, TOOLS, Talk, assistant, system


def test_a_reply_with_other_ids_and_a_reply_with_other_words(smol: Tokenizer) -> None:
    odd = [
        i
        for part in ("To the mou", "ntains, I wo", "uld say.")
        for i in smol.encode(part, parse_special=False)
    ]
    assert odd != smol.encode(ANSWER, parse_special=False).tolist()
    talk = Talk(smol)
    talk.call([system(RULES), ASK], reply=odd)
    found = talk.call([system(RULES), *TALK])
    assert found.cause is Cause.RETOKENISED_OUTPUT
    assert found.divergence is not None
    assert found.divergence.segment == "messages[2].content"
    assert found.divergence.before[:20] == found.divergence.after[:20]
    talk = Talk(smol)
    talk.call([system(RULES), ASK], reply=odd)
    edited = talk.call([system(RULES), ASK, assistant("Into the mountains, I would say."), MORE])
    assert edited.cause is not Cause.RETOKENISED_OUTPUT
    talk = Talk(smol, memory=10**6)
    talk.call([system(RULES), ASK], reply=odd)
    kept = talk.call([system(RULES), *TALK])
    assert kept.cause is Cause.FIRST_SEEN
    assert kept.divergence is None


def test_white_space_and_json_of_a_reply_in_exact_mode(smol: Tokenizer) -> None:
    call = '<tool_call>\n{"name": "book",  "arguments": {"b":1, "a": [2,3.0]}}\n</tool_call>'
    function = {"name": "book", "arguments": '{"a": [2, 3.0], "b": 1}'}
    sent = assistant("", tool_calls=[{"id": "1", "type": "function", "function": function}])
    result = {"role": "tool", "tool_call_id": "1", "content": "booked"}
    for exact in (True, False):
        talk = Talk(smol, "qwen2", memory=10**6)
        talk.call([system(RULES), ASK], TOOLS, reply=call)
        found = talk.call([system(RULES), ASK, sent, result], TOOLS, exact=exact)
        assert found.cause is (Cause.RESERIALISED_JSON if exact else Cause.FIRST_SEEN)
        talk = Talk(smol, memory=10**6)
        talk.call([system(RULES), ASK], reply=ANSWER + " \n\n")
        found = talk.call([system(RULES), *TALK], exact=exact)
        assert found.cause is (Cause.CHANGED_WHITESPACE if exact else Cause.FIRST_SEEN)


THOUGHT = "<think>\nShe likes mountains, so that is easy.\n</think>\n\n"


@pytest.mark.parametrize("apart", [False, True])
def test_thinking_dropped_by_the_template_or_by_the_client(smol: Tokenizer, apart: bool) -> None:
    thought = {"reasoning_content": "She likes mountains, so that is easy."}
    sent = assistant(ANSWER, **thought) if apart else assistant(THOUGHT + ANSWER)
    for message, cause in ((sent, Cause.THINKING_DROPPED), (assistant(ANSWER), Cause.THINKING_NOT_SENT)):
        talk = Talk(smol, "qwen3")
        talk.call([ASK], reply=THOUGHT + ANSWER)
        assert talk.call([ASK, message, MORE]).cause is cause
    talk = Talk(smol, "qwen3")
    talk.call([ASK], reply=THOUGHT + ANSWER)
    other = talk.call([ASK, assistant("To the sea, I would say, which is full of fish and of water."), MORE])
    assert other.cause not in (Cause.THINKING_DROPPED, Cause.THINKING_NOT_SENT)
    kept = Talk(smol, "chatml")
    kept.call([ASK], reply=THOUGHT + ANSWER)
    assert kept.call([ASK, assistant(THOUGHT + ANSWER), MORE]).cause is Cause.FIRST_SEEN


def test_an_empty_think_section_goes(smol: Tokenizer) -> None:
    talk = Talk(smol, "qwen3")
    talk.call([ASK], reply=ANSWER, kwargs={"enable_thinking": False})
    found = talk.call([ASK, assistant(ANSWER), MORE], kwargs={"enable_thinking": False})
    assert found.cause is Cause.THINKING_DROPPED
