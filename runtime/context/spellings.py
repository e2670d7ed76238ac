"""One regular expression for many words, as fast with six thousand as with six."""

import re
from collections.abc import Iterable
from typing import Any

_END = ""


def any_of(words: Iterable[str]) -> str:
    """A pattern that matches any of `words`, the longest that fits; one that matches nothing if there are none."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return _pattern(root) if root else "(?!)"


def _pattern(node: dict[str, Any]) -> str:
    branches = [re.escape(letter) + _pattern(child) for letter, child in node.items() if letter != _END]
    if not branches:
        return ""
    if _END in node:
        return f"(?:{'|'.join(branches)})?"
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
