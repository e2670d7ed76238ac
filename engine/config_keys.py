"""Typed look-ups in configurations that come from outside."""

import math
import sys
from collections.abc import Mapping
from typing import Any

from deeproot.engine.config import ConfigError

MAX_LAYERS = 1024
MAX_POSITIONS = 2**24
MAX_HEAD_DIM = 1024
"""Each takes memory before any weight is looked at: layers for their windows, positions and heads for rotary tables."""


class Keys:
    """A mapping from outside. A key that is absent or null takes the default, if there is one.

    Every method raises ConfigError, which names the key, if there is neither value nor default or the value is wrong.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        """where: what messages begin with, such as a file's name."""
        self.data = data
        self.where = where

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.data.get(key) is not None

    def wrong(self, key: str, wanted: str, value: Any) -> ConfigError:
        """An error to raise."""
        return ConfigError(f"{self.where}: {key!r} must be {wanted}, got {str(value)[:80]!r}")

    def positive_int(
        self, key: str, default: int | None = None, minimum: int = 1, maximum: int = 2**31 - 1
    ) -> int:
        value = self._get(key, default)
        if type(value) is not int or value < minimum:
            raise self.wrong(key, f"a whole number of at least {minimum}", value)
        if value > maximum:
            raise self.wrong(key, f"at most {maximum}", value)
        return value

    def optional_int(self, key: str, absent: int | None = None) -> int | None:
        """None for null, `absent` for a key that is not there at all."""
        if self.has(key):
            return self.positive_int(key)
        return None if key in self.data else absent

    def positive_float(
        self, key: str, default: float | None = None, maximum: float = sys.float_info.max
    ) -> float:
        value = self._get(key, default)
        if not _is_positive(value):
            raise self.wrong(key, "a number over 0", value)
        if value > maximum:
            raise self.wrong(key, f"at most {maximum:g}", value)
        return float(value)

    def optional_float(self, key: str, absent: float | None = None) -> float | None:
        """None for null, `absent` for a key that is not there at all."""
        if self.has(key):
            return self.positive_float(key)
        return None if key in self.data else absent

    def positive_floats(self, key: str) -> tuple[float, ...]:
        value = self._get(key, None)
        if not isinstance(value, list) or not all(map(_is_positive, value)):
            raise self.wrong(key, "a list of numbers over 0", value)
        return tuple(map(float, value))

    def boolean(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false", value)
        return value

    def string(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if type(value) is not str:
            raise self.wrong(key, "a string", value)
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self.data.get(key)
        if value is not None:
            return value
        if default is None:
            raise ConfigError(f"{self.where}: {key!r} is missing")
        return default


def _is_positive(value: Any) -> bool:
    # A whole number may be too large to become a float.
    if type(value) is int:
        return 0 < value < 2**63
    return type(value) is float and math.isfinite(value) and value > 0
