"""Canonical JSON (RFC 8785): one value has one spelling, so that equal values give equal bytes and equal ids.

Keys are sorted by their UTF-16 code units, separators carry no spaces, strings escape only what JSON demands, and
numbers are spelled as ECMAScript spells a double.
"""

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

_SAFE_INTEGER = 2**53 - 1
_MAX_DEPTH = 200


class CanonicalError(ValueError):
    """A value has no canonical spelling. The message names the path inside the value, such as `$.tools[0].x`."""


def canonical_json(value: Any) -> str:
    """Spell `value` (dicts with string keys, lists, tuples, strings, bools, None, numbers) canonically.

    Raises `CanonicalError` for NaN and infinities, integers that a double cannot hold exactly (beyond 2^53 - 1),
    lone surrogates, keys that are not strings, other types, and nesting deeper than 200.
    """
    parts: list[str] = []
    _write(value, parts, "$", 0)
    return "".join(parts)


def _write(value: Any, parts: list[str], path: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise CanonicalError(f"{path}: nested deeper than {_MAX_DEPTH} levels; flatten the value")
    if value is None:
        parts.append("null")
    elif value is True:
        parts.append("true")
    elif value is False:
        parts.append("false")
    elif isinstance(value, str):
        parts.append(_string(value, path))
    elif isinstance(value, int):
        parts.append(_integer(value, path))
    elif isinstance(value, float):
        parts.append(number(value, path))
    elif isinstance(value, Mapping):
        _write_object(value, parts, path, depth)
    elif isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        parts.append("[")
        for i, item in enumerate(value):
            if i:
                parts.append(",")
            _write(item, parts, f"{path}[{i}]", depth + 1)
        parts.append("]")
    else:
        raise CanonicalError(f"{path}: {type(value).__name__} is no JSON value; convert it first")


def _write_object(value: Mapping[Any, Any], parts: list[str], path: str, depth: int) -> None:
    for key in value:
        if not isinstance(key, str):
            raise CanonicalError(f"{path}: the key {key!r} is not a string; JSON keys are strings")
    parts.append("{")
    for i, key in enumerate(sorted(value, key=_utf16)):
        if i:
            parts.append(",")
        parts.append(_string(key, path))
        parts.append(":")
        _write(value[key], parts, f"{path}.{key}", depth + 1)
    parts.append("}")


def _utf16(key: str) -> bytes:
    return key.encode("utf-16-be", "surrogatepass")


def _string(value: str, path: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CanonicalError(f"{path}: a lone surrogate at character {error.start} is no text") from None
    return encode_basestring(value)


def _integer(value: int, path: str) -> str:
    if abs(value) > _SAFE_INTEGER:
        raise CanonicalError(
            f"{path}: {value} exceeds 2^53 - 1, which JSON numbers hold; write it as a string"
        )
    return int.__repr__(value)


def number(value: float, path: str = "$") -> str:
    """The spelling of a double by ECMAScript's Number-to-string: shortest digits that read back the same."""
    if not isfinite(value):
        raise CanonicalError(f"{path}: {value} is no JSON number")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = float.__repr__(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.<digits> * 10^point.
    point = (
        len(whole) + int(exponent or 0) if whole != "0" else len(digits) - len(fraction) + int(exponent or 0)
    )
    digits = digits.rstrip("0")
    return sign + _place_point(digits, point)


def _place_point(digits: str, point: int) -> str:
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    tail = f".{digits[1:]}" if count > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"
