"""RFC 8785: its own number samples, an independent implementation, and what must be refused."""

import json
import struct

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.canonical import CanonicalError, canonical_json, number

# Appendix B of the RFC: bits of a double and its spelling.
RFC_NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("bits", "spelled"), RFC_NUMBERS)
def test_numbers_of_the_rfc(bits: str, spelled: str) -> None:
    assert number(struct.unpack(">d", bytes.fromhex(bits))[0]) == spelled


@given(json_values)
def test_equals_the_independent_implementation(value: object) -> None:
    assert canonical_json(value).encode() == rfc8785.dumps(value)


@given(st.dictionaries(st.text(), json_values, max_size=6), st.randoms())
def test_order_of_insertion_does_not_matter(value: dict[str, object], rng: object) -> None:
    keys = list(value)
    rng.shuffle(keys)
    assert canonical_json({key: value[key] for key in keys}) == canonical_json(value)
    assert json.loads(canonical_json(value), parse_int=float) == value  # as doubles, which JSON numbers are


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, float("nan")]}, r"\$\.a\[1\]: nan"),
        ({"a": 2**53}, r"\$\.a: 9007199254740992 exceeds"),
        ({"a": {1: 2}}, r"\$\.a: the key 1"),
        ({"a": "\ud800"}, r"\$\.a: a lone surrogate"),
        ({"a": {1, 2}}, r"\$\.a: set is no JSON value"),
        ({"a": b"x"}, r"\$\.a: bytes is no JSON value"),
    ],
)
def test_refuses_by_name(value: object, says: str) -> None:
    with pytest.raises(CanonicalError, match=says):
        canonical_json(value)


def test_refuses_endless_nesting() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(CanonicalError, match="nested deeper than 200"):
        canonical_json(value)
