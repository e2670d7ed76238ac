"""Raw prompts go on with the ids of their outputs, and keep their text."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.continuation import ChatContinuation
from deeproot.runtime.chat.piece_memory import PieceMemory
from deeproot.runtime.chat.reply_format import reply_format
from deeproot.runtime.chat.reply_memory import ReplyMemory
from deeproot.runtime.chat.text_continuation import TextContinuation
from deeproot.runtime.chat.tokenizer import Tokenizer

from .talks import OTHER, TEXTS, USER, family, odd_ids


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
