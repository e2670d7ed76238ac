"""Volatile bytes where a prompt should be stable."""

import json
import re
from collections.abc import Iterator, Sequence

PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("timestamp", re.compile(r"\b(?:19|20)\d\d-[01]\d-[0-3]\d(?:[T ][0-2]\d:[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?\b")),
    ("timestamp", re.compile(r"\b[0-2]?\d:[0-5]\d:[0-5]\d(?:[.,]\d+)?\b")),
    ("timestamp", re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? (?:\d{1,2} )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\b")),
    ("timestamp", re.compile(r"\b1[5-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?\b")),
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")),
    ("address", re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")),
    ("hex", re.compile(r"\b(?=[0-9a-fA-F]*[a-fA-F])(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,128}\b")),
    ("counter", re.compile(r"\b(?:turn|step|iteration|attempt|request|call|message|session|nonce|counter|run)(?:[ _-]?(?:id|number|no\.?|count))? ?[:#=]? ?#?\d+\b", re.IGNORECASE)),
    ("counter", re.compile(r"\b\d+ (?:turns?|steps?|tokens?|messages?|calls?|seconds|minutes) (?:left|so far|remaining|used|ago)\b", re.IGNORECASE)),
    ("temp path", re.compile(r"(?:/tmp|/var/tmp|/var/folders|/private/tmp|/dev/shm|[A-Z]:\\\\?(?:Windows\\\\?)?Temp)[/\\][\w.\-/\\]+")),
)  # fmt: skip
_OBJECT = re.compile(r"\{[^{}]*\}")


class Linter:
    """Finds volatile stretches; remembers what it found in the texts of the last call, which mostly come again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[str, int, str], ...]] = {}

    def check(self, texts: Sequence[str]) -> list[tuple[tuple[str, int, str], ...]]:
        """What `volatile_stretches` says of each text."""
        found = {
            text: self._last[text] if text in self._last else tuple(volatile_stretches(text))
            for text in texts
        }
        self._last = found
        return [found[text] for text in texts]


def volatile_stretches(text: str) -> Iterator[tuple[str, int, str]]:
    """(cause, character, excerpt) of each stretch that looks as if it changed from call to call, left to right."""
    found = [
        (match.start(), match.end(), cause, match.group())
        for cause, pattern in PATTERNS
        for match in pattern.finditer(text)
    ]
    found += [(at, at + len(excerpt), "unordered mapping", excerpt) for at, excerpt in _unordered(text)]
    end = -1
    for start, stop, cause, excerpt in sorted(found, key=lambda f: (f[0], -f[1])):
        if start >= end:
            yield cause, start, excerpt[:80]
            end = stop


def classify(before: str, after: str) -> str:
    """What kind of change turned `before` into `after`: a pattern's name, or `changed`."""
    for cause, pattern in PATTERNS:
        old, new = pattern.search(before), pattern.search(after)
        if old and new and pattern.sub("", before) == pattern.sub("", after) and before != after:
            return cause
    if sorted(before) == sorted(after):
        return "unordered mapping"
    return "changed"


def _unordered(text: str) -> Iterator[tuple[int, str]]:
    """JSON objects whose keys are in no order: what wrote them did not sort, so the order may be another next time."""
    for match in _OBJECT.finditer(text):
        try:
            pairs = json.loads(match.group(), object_pairs_hook=list)
        except ValueError:
            continue
        keys = [pair[0] for pair in pairs if isinstance(pair, tuple)]
        if len(keys) > 2 and keys != sorted(keys) and keys != sorted(keys, reverse=True):
            yield match.start(), match.group()
