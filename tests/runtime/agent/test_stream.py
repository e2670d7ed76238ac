"""Replies in pieces: calls are told as soon as they are whole, and what is no reply is said to be none."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.agent.stream import BrokenReplyError, Call, End, ModelError, Piece, Server, Text, Usage

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=6), values, max_size=4)


class _Chunks(httpx.AsyncByteStream):
    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def pieces_of(data: bytes | Sequence[bytes], status: int = 200, **headers: str) -> list[Piece]:
    """What a client makes of a response."""
    chunks = [data] if isinstance(data, bytes) else data
    transport = httpx.MockTransport(
        lambda request: httpx.Response(status, headers=headers, stream=_Chunks(chunks))
    )

    async def read() -> list[Piece]:
        server = Server("http://model/v1", transport=transport)
        try:
            return [piece async for piece in server.reply({"messages": []})]
        finally:
            await server.close()

    return asyncio.run(read())


def sse(*chunks: Any) -> bytes:
    return b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def part(
    index: int | None, call_id: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    made: dict[str, Any] = {} if index is None else {"index": index}
    made |= {} if call_id is None else {"id": call_id, "type": "function"}
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return delta(tool_calls=[{**made, "function": function}])


@settings(max_examples=25, deadline=None)
@given(
    calls=st.lists(objects, max_size=3),
    text=st.text(max_size=20),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    network=st.integers(5, 60),
)
def test_however_it_is_cut(calls: list[dict[str, Any]], text: str, cuts: list[int], network: int) -> None:
    chunks = [delta(content=text)] if text else []
    for number, given_arguments in enumerate(calls):
        left = json.dumps(given_arguments)
        chunks.append(part(number, f"c{number}", "f", ""))
        for i in range(1000):
            size = cuts[i % len(cuts)]
            if not left:
                break
            chunks.append(part(number, arguments=left[:size]))
            left = left[size:]
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    data = sse(*chunks, delta(finish="stop"), {"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
    pieces = pieces_of([data[i : i + network] for i in range(0, len(data), network)])
    expected = [Call(f"c{i}", "f", json.dumps(arguments)) for i, arguments in enumerate(calls)]
    assert [piece for piece in pieces if isinstance(piece, Call)] == expected
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == text
    assert pieces[-1] == End("stop", Usage(9, 3, 4))


def test_a_call_is_told_before_the_reply_goes_on() -> None:
    data = sse(
        part(0, "a", "read", '{"path": '),
        part(0, arguments='"x"}'),
        delta(content="and then"),
        part(1, "b", "read", "{}"),
        delta(finish="tool_calls"),
    )
    assert pieces_of(data) == [
        Call("a", "read", '{"path": "x"}'),
        Text("and then"),
        Call("b", "read", "{}"),
        End("tool_calls", None),
    ]


def test_arguments_that_are_no_json_are_told_when_the_next_call_begins_or_the_reply_ends() -> None:
    data = sse(part(0, "a", "f", '{"x": nope'), part(1, "b", "g", "{"), delta(finish="length"))
    assert pieces_of(data) == [Call("a", "f", '{"x": nope'), Call("b", "g", "{"), End("length", None)]


def test_forms_that_servers_have() -> None:
    whole = delta(
        tool_calls=[
            {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}},
            {"id": "b", "function": {"name": "g", "arguments": "{}"}},
        ]
    )
    repeated_name = [part(0, "c", "h", ""), part(0, "c", "h", "{}")]
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    first = pieces_of(sse(whole, {**delta(finish="stop"), "usage": usage}))
    assert first == [Call("a", "f", '{"x": 1}'), Call("b", "g", "{}"), End("stop", Usage(5, 1, None))]
    assert pieces_of(sse(*repeated_name, delta(finish="stop")))[0] == Call("c", "h", "{}")
    thinking = pieces_of(sse(delta(reasoning_content="hm"), delta(reasoning="so"), delta(finish="stop")))
    assert thinking[:2] == [Text("hm", reasoning=True), Text("so", reasoning=True)]
    without_space = sse(delta(content="x"), delta(finish="stop")).replace(b"data: ", b"data:")
    assert pieces_of(b": a comment\r\n\r\nevent: x\n" + without_space)[0] == Text("x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ended before"),
        (sse(delta(content="half")), "ended before"),
        (sse(part(0, "a", "f", "{}")), "ended before"),
        (b"data: {nonsense\n\n", "no JSON"),
        (b"data: [1]\n\n", "no object"),
        (sse({"choices": [{"delta": {"tool_calls": "x"}}]}), "no chat completion chunk"),
        (sse({"choices": "x"}), "no chat completion chunk"),
        (sse({"usage": {"prompt_tokens": "many"}}), "no chat completion chunk"),
        (sse({"error": {"message": "out of memory"}}), "out of memory"),
        (sse({"error": "plain"}), "plain"),
        (sse(part(0, "a", "f", "{}"), part(0, arguments='{"b": 1}')), "more arguments"),
    ],
)
def test_what_is_no_reply(data: bytes, words: str) -> None:
    with pytest.raises(BrokenReplyError, match=words):
        pieces_of(data)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60) | st.lists(values, max_size=3).map(lambda chunks: sse(*chunks)))
def test_any_bytes_are_a_reply_or_said_to_be_none(data: bytes) -> None:
    with contextlib.suppress(BrokenReplyError):
        assert isinstance(pieces_of(data)[-1], End)


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (400, b'{"error": {"message": "too long"}}', ModelError, "400: too long"),
        (401, b"", ModelError, "401"),
        (404, b"<html>", ModelError, "404: <html>"),
        (429, b'{"error": {"message": "busy"}}', BrokenReplyError, "429: busy"),
        (503, b'{"error": "starting"}', BrokenReplyError, "503: starting"),
    ],
)
def test_refusals(status: int, body: bytes, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        pieces_of(body, status)


def test_a_server_says_when_to_come_back() -> None:
    with pytest.raises(BrokenReplyError) as caught:
        pieces_of(b"{}", 429, **{"retry-after": "7"})
    assert caught.value.after_s == 7.0
    with pytest.raises(BrokenReplyError) as caught:
        pieces_of(b"{}", 429, **{"retry-after": "tomorrow"})
    assert caught.value.after_s is None


def test_nobody_there() -> None:
    async def ask() -> None:
        server = Server("http://127.0.0.1:9/v1")
        try:
            with pytest.raises(ModelError, match="no server answers"):
                await server.model()
            with pytest.raises(BrokenReplyError, match="connection failed"):
                async for _ in server.reply({}):
                    pass
        finally:
            await server.close()

    asyncio.run(ask())
