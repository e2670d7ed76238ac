"""Streams of tokens give exactly what decoding them all would, and no character is split."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.detokenizer import Detokenizer
from deeproot.runtime.chat.tokenizer import Tokenizer

from .strategies import texts


@pytest.fixture(scope="module", params=["smol", "spm"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """One vocabulary of each kind: byte-level, and SentencePiece with bytes for unknown characters."""
    return request.getfixturevalue(request.param)


def streamed(detokenizer: Detokenizer, ids: list[int]) -> list[str]:
    return [*map(detokenizer.feed, ids), detokenizer.finish()]


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    return [i for i, piece in enumerate(tokenizer.pieces) if len(piece) == 1]


def id_lists(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids with many single bytes among them, so that characters are broken in every way; some do not exist."""
    any_id = st.integers(-2, tokenizer.vocab_size + 2)
    return st.lists(st.one_of(st.sampled_from(byte_ids(tokenizer)), any_id), max_size=40)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_stream_equals_decode(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    ids = data.draw(id_lists(tokenizer))
    pieces = streamed(Detokenizer(tokenizer, skip_special_tokens=skip), ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(text=texts)
def test_no_character_is_split(tokenizer: Tokenizer, text: str) -> None:
    """What is shown is at every moment a beginning of the text."""
    ids = tokenizer.encode(text, parse_special=False).tolist()
    whole = tokenizer.decode(ids)
    shown = ""
    for piece in streamed(Detokenizer(tokenizer), ids):
        shown += piece
        assert whole.startswith(shown)
    assert shown == whole


def test_an_emoji_over_several_tokens_comes_when_it_is_whole(smol: Tokenizer) -> None:
    ids = smol.encode("🦖", parse_special=False).tolist()
    assert len(ids) > 1
    assert streamed(Detokenizer(smol), ids) == [""] * (len(ids) - 1) + ["🦖", ""]
    assert streamed(Detokenizer(smol), ids[:-1])[-1] == "\ufffd"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xc3\xc3\xa9", "\ufffdé"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\x80\xbf", "\ufffd\ufffd"),
    ],
)
def test_invalid_bytes_become_replacement_characters(spm: Tokenizer, data: bytes, text: str) -> None:
    by_byte = {spm.pieces[i]: i for i in byte_ids(spm)}
    ids = [by_byte[bytes([b])] for b in data]
    assert "".join(streamed(Detokenizer(spm), ids)) == text == spm.decode(ids)


def test_special_tokens_are_skipped_shown_or_kept(smol: Tokenizer) -> None:
    ids = smol.encode("<|im_start|>a<|im_end|>", parse_special=True).tolist()
    assert "".join(streamed(Detokenizer(smol), ids)) == "a"
    assert "".join(streamed(Detokenizer(smol, skip_special_tokens=False), ids)) == "<|im_start|>a<|im_end|>"
    assert "".join(streamed(Detokenizer(smol, keep={2}), ids)) == "a<|im_end|>"


def test_leading_space_of_a_continuation(spm: Tokenizer) -> None:
    ids = spm.encode("the end", parse_special=False).tolist()
    assert "".join(streamed(Detokenizer(spm), ids)) == "the end"
    assert "".join(streamed(Detokenizer(spm, continues_text=True), ids)) == " the end"
