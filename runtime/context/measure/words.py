"""Facts as measures see them: identifiers, paths and numbers that an observation shows and an action can repeat."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[\w@#/.~$-]*[\w]")
_TELLING = re.compile(r"\d\D*\d\D*\d|[_./@#~$-]|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]")
_SHORTEST = 3


def facts_in(text: str) -> frozenset[str]:
    """Words that are no plain language: with three digits or more, a digit beside a letter, an inner capital, or one of
    `_ . / @ # ~ $ -` inside; of words with a slash their parts too.

    `--db-port=5433 src/a.py` gives `db-port`, `5433`, `src/a.py` and `a.py`.
    """
    words = {word.strip("./-") for word in _WORD.findall(text)}
    words |= {part.strip(".-") for word in words if "/" in word for part in word.split("/")}
    return frozenset(word for word in words if len(word) >= _SHORTEST and _TELLING.search(word))


def facts_of_arguments(value: Any) -> frozenset[str]:
    """The facts in a call's arguments: in every string and number at any depth; names of arguments are none."""
    if isinstance(value, str):
        return facts_in(value)
    if isinstance(value, Mapping):
        return frozenset().union(*(facts_of_arguments(item) for item in value.values()))
    if isinstance(value, Sequence):
        return frozenset().union(*(facts_of_arguments(item) for item in value))
    return (
        facts_in(str(value))
        if isinstance(value, (int, float)) and not isinstance(value, bool)
        else frozenset()
    )
