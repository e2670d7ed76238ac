"""The incremental JSON scanner against the standard library's parser."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.chat.json_scanner import JsonObjectScanner, JsonStatus

from .strategies import cuts

values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)
objects = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only),
    st.dictionaries(st.text(max_size=6), values, max_size=5),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
json_letters = st.text(alphabet='{}[]",:\\u0019aeE+-.ntrfls \n\x01é', max_size=30)


def scan(text: str) -> tuple[JsonObjectScanner, int]:
    scanner = JsonObjectScanner()
    return scanner, scanner.feed(text)


def standard(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)  # NaN and Infinity are no JSON

    return json.loads(text, parse_constant=refuse)


def is_object(text: str) -> bool:
    try:
        return isinstance(standard(text), dict)
    except ValueError:
        return False


@settings(max_examples=80, deadline=None)
@given(text=objects, tail=st.text(max_size=4))
def test_reads_an_object_and_not_a_letter_more(text: str, tail: str) -> None:
    scanner, end = scan(" \n" + text + tail)
    assert scanner.status is JsonStatus.DONE
    assert end == len(text) + 2
    expected = list(standard(text).items())
    padded = " \n" + text
    keys = [json.loads(padded[slice(*span)]) for span in scanner.key_spans]
    found = list(zip(keys, [json.loads(padded[slice(*span)]) for span in scanner.value_spans], strict=True))
    assert found == expected


@settings(max_examples=80, deadline=None)
@given(text=objects, data=st.data())
def test_cuts_change_nothing(text: str, data: st.DataObject) -> None:
    whole, _ = scan(text)
    scanner = JsonObjectScanner()
    for piece in data.draw(cuts(text)):
        assert scanner.feed(piece) == len(piece)
    assert (scanner.status, scanner.key_spans, scanner.value_spans) == (
        whole.status,
        whole.key_spans,
        whole.value_spans,
    )


@settings(max_examples=350, deadline=None)
@given(
    text=st.one_of(
        json_letters, objects.flatmap(lambda t: st.integers(0, len(t)).map(lambda i: t[:i] + t[i + 1 :]))
    )
)
def test_agrees_with_the_standard_parser(text: str) -> None:
    scanner, end = scan(text)
    if scanner.status is JsonStatus.DONE:
        assert is_object(text[:end])
    else:
        assert not is_object(text)
    if scanner.status is JsonStatus.BROKEN:
        assert not any(
            is_object(text[: end + 1] + ending) for ending in ("", "}", '"}', ":1}", "1}", '":1}', "]}")
        )


def test_broken_at_the_first_impossible_letter() -> None:
    for text, at in [
        ("[1]", 0),
        ("{a", 1),
        ('{"a" 1', 5),
        ('{"a":01', 6),
        ('{"a":tru}', 8),
        ('{"a":"\\x', 7),
        ('{"a":1,}', 7),
    ]:
        scanner, end = scan(text)
        assert (scanner.status, end) == (JsonStatus.BROKEN, at), text


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_depth_is_limited(bracket: str) -> None:
    assert scan('{"a":' + bracket * 100)[0].status is JsonStatus.OPEN
    assert scan('{"a":' + bracket * 10**5)[0].status is JsonStatus.BROKEN
