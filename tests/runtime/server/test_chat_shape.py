"""A token's chunk is written around its text: it must be what the whole chunk would be."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.chat.reply_events import ContentDelta, ReasoningDelta
from deeproot.runtime.output_text import OutputEnd
from deeproot.runtime.server.chat_shape import ChatShape
from deeproot.runtime.server.job import Piece
from deeproot.runtime.server.responses import ChatChunkChoice, ChatCompletionChunk, Delta
from deeproot.scheduler.messages import Usage

# No lone surrogates: text comes out of a decoder.
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@given(text=texts, index=st.integers(0, 9), name=texts, usage=st.booleans())
def test_text_chunks(text: str, index: int, name: str, usage: bool) -> None:
    shape = ChatShape("chatcmpl-1", name, include_usage=usage)
    (role, _) = shape.chunks(Piece(index, [ContentDelta("first")], None))
    assert isinstance(role, ChatCompletionChunk)
    for said in (text, text + "!"):
        (chunk,) = shape.chunks(Piece(index, [ContentDelta(said)], None))
        choice = ChatChunkChoice(index=index, delta=Delta(content=said))
        expected = msgspec.structs.replace(role, choices=[choice])
        assert msgspec.json.encode(chunk) == msgspec.json.encode(expected)


def test_other_pieces_keep_their_chunks() -> None:
    shape = ChatShape("chatcmpl-1", "m", include_usage=False)
    end = OutputEnd("stop", Usage(prompt=1, cached=0, computed=1, output=1))
    pieces = [
        Piece(0, [ContentDelta("a")], None),
        Piece(0, [ReasoningDelta("b"), ContentDelta("c")], None),
        Piece(0, [ContentDelta("d")], end),
    ]
    chunks = [json.loads(msgspec.json.encode(chunk)) for piece in pieces for chunk in shape.chunks(piece)]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"reasoning_content": "b", "reasoning": "b"},
        {"content": "c"},
        {"content": "d"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["stop"]
