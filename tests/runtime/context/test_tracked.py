"""Tracked strings against an oracle: every character is a private one, so that its origin can be read off."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.tracked import Owner, Tracked, concat, owned

OWNERS = tuple(Owner("content", i) for i in range(3))
ALPHABET = "ab \n,x"
pieces = st.lists(st.tuples(st.text(ALPHABET, max_size=6), st.sampled_from(range(3))), max_size=5)


def build(parts: list[tuple[str, int]]) -> Tracked:
    return concat(owned(text, OWNERS[i]) for text, i in parts)


def owners_of(text: str) -> list[int | None]:
    """The owner of each character; None: unknown."""
    if not isinstance(text, Tracked):
        return [None] * len(text)
    flat: list[int | None] = []
    for length, owner in text.runs:
        assert length > 0
        flat += [owner.segment if owner.kind == "content" else None] * length
    assert len(flat) == len(text)
    assert all(a[1] is not b[1] for a, b in zip(text.runs, text.runs[1:], strict=False))
    return flat


class Oracle:
    """The same text as a list of (character, owner), and operations on positions found by plain `str`."""

    def __init__(self, parts: list[tuple[str, int]]) -> None:
        self.text = "".join(text for text, _ in parts)
        self.owners = [i for text, i in parts for _ in text]

    def cut(self, start: int, stop: int) -> tuple[str, list[int]]:
        return self.text[start:stop], self.owners[start:stop]


def same(got: str, text: str, owners: list[int] | list[int | None]) -> None:
    assert isinstance(got, Tracked)
    assert str.__eq__(got, text)
    assert owners_of(got) == owners


@given(pieces, pieces)
def test_adding(left: list[tuple[str, int]], right: list[tuple[str, int]]) -> None:
    a, b = Oracle(left), Oracle(right)
    same(build(left) + build(right), a.text + b.text, a.owners + b.owners)
    assert owners_of("zz" + build(right)) == [None, None, *b.owners]
    assert owners_of(build(left) + "zz") == [*a.owners, None, None]
    same(build(left) * 3, a.text * 3, a.owners * 3)


@given(pieces, st.integers(-12, 12), st.integers(-12, 12))
def test_slicing(parts: list[tuple[str, int]], start: int, stop: int) -> None:
    whole, oracle = build(parts), Oracle(parts)
    same(whole[start:stop], oracle.text[start:stop], oracle.owners[start:stop])
    if -len(oracle.text) <= start < len(oracle.text):
        same(whole[start], oracle.text[start], [oracle.owners[start]])
    else:
        with pytest.raises(IndexError):
            whole[start]


@given(pieces, st.none() | st.text(ALPHABET, min_size=1, max_size=3))
def test_stripping(parts: list[tuple[str, int]], chars: str | None) -> None:
    whole, oracle = build(parts), Oracle(parts)
    start = len(oracle.text) - len(oracle.text.lstrip(chars))
    stop = len(oracle.text.rstrip(chars))
    same(whole.lstrip(chars), *oracle.cut(start, len(oracle.text)))
    same(whole.rstrip(chars), *oracle.cut(0, stop))
    same(whole.strip(chars), *oracle.cut(start, max(start, stop)))


@given(pieces, st.none() | st.text(ALPHABET, min_size=1, max_size=2), st.integers(-1, 3), st.booleans())
def test_splitting(parts: list[tuple[str, int]], sep: str | None, limit: int, right: bool) -> None:
    whole, oracle = build(parts), Oracle(parts)
    method: Callable[..., list[str]] = Tracked.rsplit if right else Tracked.split
    plain: Callable[..., list[str]] = str.rsplit if right else str.split
    got = method(whole, sep, limit)
    # The origin of each piece, from marks: positions of the characters that the separator consumed are not in it.
    marked = "".join(
        chr(0xE000 + i) if not oracle.text[i].isspace() else c for i, c in enumerate(oracle.text)
    )
    assert [str.__str__(piece) for piece in got] == plain(oracle.text, sep, limit)
    if sep is None:
        for piece, spelled in zip(got, plain(marked, None, limit), strict=True):
            kept = [(ord(c) - 0xE000) for c in spelled if ord(c) >= 0xE000]
            inside = [o for c, o in zip(piece, owners_of(piece), strict=True) if not c.isspace()]
            assert inside == [oracle.owners[i] for i in kept]
    else:
        rebuilt: list[int | None] = []
        at = 0
        for i, piece in enumerate(got):
            at += len(sep) if i else 0
            rebuilt += owners_of(piece)
            assert owners_of(piece) == oracle.owners[at : at + len(piece)]
            at += len(piece)
        assert at == len(oracle.text)


@given(pieces, st.text(ALPHABET, max_size=2), st.text("yz", max_size=2), st.integers(-1, 4))
def test_replacing(parts: list[tuple[str, int]], old: str, new: str, limit: int) -> None:
    whole, oracle = build(parts), Oracle(parts)
    replacement = owned(new, Owner("content", 9))
    got = whole.replace(old, replacement, limit)
    assert str.__eq__(got, oracle.text.replace(old, new, limit))
    kept = [o for o in owners_of(got) if o != 9]
    removed = oracle.text if not old else None
    if removed is not None:
        assert kept == oracle.owners
    else:
        left, at, count = [], 0, limit
        while at < len(oracle.text):
            if count != 0 and oracle.text.startswith(old, at):
                at, count = at + len(old), count - 1
            else:
                left.append(oracle.owners[at])
                at += 1
        assert kept == left


@given(pieces, pieces, st.lists(pieces, max_size=4))
def test_joining_and_lines(
    sep: list[tuple[str, int]], parts: list[tuple[str, int]], many: list[list[tuple[str, int]]]
) -> None:
    got = build(sep).join([build(one) for one in many])
    expected: list[int | None] = []
    for i, one in enumerate(many):
        expected += (Oracle(sep).owners if i else []) + Oracle(one).owners
    same(got, Oracle(sep).text.join(Oracle(one).text for one in many), expected)
    whole, oracle = build(parts), Oracle(parts)
    for keep in (False, True):
        lines = whole.splitlines(keep)
        assert list(map(str, lines)) == oracle.text.splitlines(keep)
        if keep:
            assert [o for line in lines for o in owners_of(line)] == oracle.owners
    for found, plain in (
        (whole.partition(","), oracle.text.partition(",")),
        (whole.rpartition(","), oracle.text.rpartition(",")),
    ):
        assert tuple(map(str.__str__, found)) == plain
        assert [o for piece in found for o in owners_of(piece)] == oracle.owners
    same(
        whole.removeprefix("a"),
        oracle.text.removeprefix("a"),
        oracle.owners[len(oracle.text) - len(oracle.text.removeprefix("a")) :],
    )
    same(
        whole.removesuffix("a"),
        oracle.text.removesuffix("a"),
        oracle.owners[: len(oracle.text.removesuffix("a"))],
    )
    same(whole.upper(), oracle.text.upper(), oracle.owners)


def test_what_is_not_followed_is_unknown() -> None:
    text = owned("a-b", OWNERS[0])
    for lost in (
        text.center(9),
        text.translate({45: "_"}),
        f"{text}!",
        text[::-1],
        text.zfill(8),
    ):
        assert not isinstance(lost, Tracked) or None in owners_of(lost)


def test_is_a_plain_string_in_every_other_way() -> None:
    text = owned("ab", OWNERS[0])
    assert text == "ab"
    assert hash(text) == hash("ab")
    assert {"ab": 1}[text] == 1
    assert json.dumps({text: text}) == '{"ab": "ab"}'
    assert str(text) is text
