"""What no filter and no extractor may lose: the verbatim set V(O) of an observation, and the check for it.

V(O) holds, for each diagnostic in the observation and each frame of the caller's own code under it: file, line and
column, code, the identifiers that the message quotes, hashes, the failing assertion, and each failing test's name.
It is computed from the lines alone, by patterns that no extractor uses, so that the check is a second opinion.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field


class RetentionError(ValueError):
    """A stage lost facts. `facts`: which ones."""

    def __init__(self, stage: str, facts: Sequence["Fact"]) -> None:
        shown = "; ".join(f"{f.kind} {' '.join(f.parts)}" for f in facts[:5])
        more = f" and {len(facts) - 5} more" if len(facts) > 5 else ""
        count = "1 fact" if len(facts) == 1 else f"{len(facts)} facts"
        super().__init__(f"{stage} would lose {count}: {shown}{more}; its result is refused")
        self.facts = tuple(facts)


@dataclass(frozen=True, slots=True)
class Fact:
    """Strings that must stand together on one line of what is kept."""

    kind: str
    """place, frame, code, name, hash, test or assertion."""
    parts: tuple[str, ...]
    line: str = field(default="", compare=False)
    """The line that it was read from."""


_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[()][0-9A-Z]|\x1b[=>78]"
)
_PATH = r"(?P<path>(?:[A-Za-z]:[\\/]|file://)?[^\s:()\[\]\"'`]+)"
_DIAGNOSTIC = [  # diagnostics: place, code and message
    _PATH + r":(?P<line>\d+)(?::(?P<col>\d+))?(?::\d+:\d+)?(?:: | - )(?:fatal )?(?:error|warning)"
    r"(?:\[(?P<code>\w+)\])?:? (?P<message>.*)",
    _PATH + r"\((?P<line>\d+),(?P<col>\d+)\): (?:error|warning) (?P<code>[A-Z]+\d+): (?P<message>.*)",
    r"\[ERROR\] " + _PATH + r":\[(?P<line>\d+),(?P<col>\d+)\] (?P<message>.*)",
    _PATH + r"(?<=\.go):(?P<line>\d+)(?::(?P<col>\d+))?: (?P<message>.*)",
    _PATH + r":(?P<line>\d+):(?P<col>\d+): (?P<code>[A-Z]{1,4}\d{3,4}) (?P<message>.*)",
    r"CMake (?:Error|Warning) at " + _PATH + r":(?P<line>\d+) \((?P<code>\w+)\):(?P<message>)",
    r"\w*make(?:\[\d+\])?: \*\*\* \[(?P<path>[^:\]]+):(?P<line>\d+): (?P<message>[^\]]+)\] (?P<code>Error \d+)",
    r"(?P<line>\d+):(?P<col>\d+)\s+(?:error|warning)\s+(?P<message>.*?)(?:\s{2,}(?P<code>[\w@/-]+))?",
]
_DIAGNOSTIC_RE = [re.compile(p + r"\s*$") for p in _DIAGNOSTIC]
_FRAME_RE = [
    re.compile(r'File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<name>.+))?\s*$'),
    re.compile(_PATH + r"(?<=\.py):(?P<line>\d+):(?: in (?P<name>\S+)| [A-Z]\w*.*)?\s*$"),
    re.compile(
        r"(?:at|❯) (?:(?:async )?(?P<name>[^\s(]+) \(?)?" + _PATH + r":(?P<line>\d+):(?P<col>\d+)\)?\s*$"
    ),
    re.compile(r"at (?P<name>[\w.$/<>]+)\((?P<path>\w+\.(?:java|kt)):(?P<line>\d+)\)\s*$"),
    re.compile(_PATH + r"(?<=\.go):(?P<line>\d+)(?: \+0x[0-9a-f]+)?\s*$"),
    re.compile(r"(?:-->|:::) " + _PATH + r":(?P<line>\d+):(?P<col>\d+)\s*$"),
    re.compile(r".*panicked at " + _PATH + r":(?P<line>\d+):(?P<col>\d+):?\s*$"),
    re.compile(r"(?P<path>\S*(?:CMakeLists\.txt|\.cmake)):(?P<line>\d+) \((?P<name>\w+)\)$"),
    re.compile(_PATH + r":(?P<line>\d+):(?P<col>\d+):\s+(?:required from|note: in expansion of macro) .*$"),
]
_LIBRARY = re.compile(
    r"site-packages/|dist-packages/|/usr/lib/|/usr/include/|/usr/bin/\.\./lib/|/lib/python3|node_modules/|node:"
    r"|/rustc/|<frozen |<string>|java\.base/|jdk\.internal|sun\.reflect|org\.junit\.|org\.apache\.maven\.|/go[\d.-]*/src/"
)
_TEST_RE = [
    re.compile(
        r"(?:FAILED|ERROR) (?P<test>(?>\S+?\.py(?![\w/.-]))(?:::(?>(?:[^\s\[]|\[[^\]]*\])+))?)(?: - .*)?\s*$"
    ),
    re.compile(r"(?P<test>(?>\S+?\.py(?![\w/.-]))::(?>(?:[^\s\[]|\[[^\]]*\])+)) (?:FAILED|ERROR)\b.*$"),
    re.compile(
        r"(?:FAIL|ERROR|UNEXPECTED SUCCESS): (?P<name>\w+) \((?P<test>[\w.]+)\)(?: (?P<sub>[\[(].*))?\s*$"
    ),
    re.compile(r"--- FAIL: (?P<test>\S+) \(\d"),
    re.compile(r"test (?P<test>.+?)(?: - should panic)? \.\.\. FAILED\s*$"),
    re.compile(r"\[ERROR\] (?P<test>[\w.$]+(?:\([^)]*\))?) -- .*<<< (?:FAILURE|ERROR)!\s*$"),
    re.compile(r"● (?P<test>.+?)\s*$"),
    re.compile(r"FAIL\s+(?P<test>\S+\.[cm]?[jt]sx?(?: > .+?)?)(?: \[.*\])?\s*$"),
    re.compile(r"not ok \d+ - (?P<test>.+?)\s*$"),
    re.compile(r"✖ (?P<test>.+?) \([\d.]+m?s\)\s*$"),
    re.compile(r"\d+/\d+ Test +#\d+: (?P<test>\S+) \.*\s*(?:\*\*\*|\w+ \w+\*\*\*)(?:Failed|Exception)"),
    re.compile(r"FAIL\t(?P<test>\S+)"),
    re.compile(r"FAILED: (?P<test>\S.*?)\s*$"),
]
_ASSERTION_RE = [
    re.compile(r"E   +(?P<text>\S.*?)\s*$"),
    re.compile(r"(?P<text>(?:[a-z_$][\w$]*\.)*[A-Z]\w*(?:Error|Exception|Failure)(?: \[\w+\])?: \S.*?)\s*$"),
    re.compile(
        r"(?P<text>(?:assertion .*failed|panic: .+|Expected: .+|Received: .+|left: .+|right: .+)\S*)\s*$"
    ),
    re.compile(r".*(?P<text>Assertion `.+' failed)"),
    re.compile(r".*(?P<text>undefined reference to [`'‘].+)$"),
    re.compile(r"(?P<text>index out of bounds: .+|called `.+` on an? .+)$"),
]
_HEAD_RE = re.compile(
    r"(?:(?:error|warning)\[(?P<code>\w+)\]:|(?P<rule>[A-Z]{1,4}\d{3,4})(?= )) (?P<message>.*)$"
)
_TRAILING_CODE = re.compile(r"\[(?P<code>-W[\w=,+-]+|[a-z][a-z0-9-]+)\]\s*$")
_QUOTED = re.compile(r"‘([^’]+)’|`([^`']+)[`']|(?<!\w)'([^']+)'|\"([^\"]+)\"")
_HASH = re.compile(r"(?<![\w])(?=[0-9a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,64}(?!\w)")
# A line without any of these holds no fact; searching for them is what the check costs on a clean log.
_KEYS = (
    "error: ", "error[", " error ", "warning: ", "warning[", " warning ", "Error: ", "Error [", "Exception: ",
    "Failure: ", "ERROR", "FAIL", "UNEXPECTED SUCCESS", "CMake Warning", "CMake Error", "*** ", "panic", "ssertion ",
    'File "', "  at ", "\tat ", "❯ ", "--> ", "::: ", "E   ", "not ok ", "✖ ", "● ", ".go:", ".py:", "Expected: ",
    "Received: ", "left: ", "right: ", "undefined reference", "required from", "in expansion of", "index out of bounds",
    "called `", "CMakeLists.txt:", ".cmake:",
)  # fmt: skip
_TOKEN = re.compile(r"[^\s:()\[\],]+")
_PASSED = re.compile(
    r"\S+::\S.* (?:PASSED|SKIPPED|XFAIL)\b|\[gw\d+\] .*(?:PASSED|SKIPPED)|.* \.\.\. ok$|ok  ?\t"
)


def facts(text: str) -> set[Fact]:
    """V(O) of a text, colours and carriage returns resolved first, each redrawn form counting as a line.

    Of a traceback whose frames all belong to libraries, no frame is required; the exception is.
    """
    if not any(key in text for key in _KEYS):
        return set()
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    found: set[Fact] = set()
    seen: set[str] = set()
    for line in _candidates(text.replace("\r", "\n") if "\r" in text else text):
        bare = line.strip(" \t│|")
        if bare not in seen:
            seen.add(bare)
            found.update(_line_facts(bare))
    return found


def _candidates(text: str) -> Iterator[str]:
    """The lines on which some key stands."""
    ends: dict[int, int] = {}
    for key in _KEYS:
        at = text.find(key)
        while at >= 0:
            start = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            ends[start] = end
            if key == "--> " and start > 1:  # the head of such a diagnostic stands one line above its place
                ends[text.rfind("\n", 0, start - 1) + 1] = start - 1
            at = text.find(key, end)
    for start in sorted(ends):
        yield text[start : ends[start]]


def _line_facts(line: str) -> Iterator[Fact]:
    if len(line) > 5_000 or _PASSED.match(line):
        return  # a page of data on one line is no diagnostic
    for pattern in _DIAGNOSTIC_RE:
        if match := pattern.match(line):
            groups = match.groupdict()
            yield Fact(
                "place", tuple(g for g in (groups.get("path"), groups["line"], groups.get("col")) if g), line
            )
            yield from _message_facts(groups["message"], groups.get("code"), line)
            break
    if match := _HEAD_RE.match(line):
        yield from _message_facts(match["message"], match["code"] or match["rule"], line)
    for pattern in _FRAME_RE:
        if match := pattern.match(line):
            groups = match.groupdict()
            if not _LIBRARY.search(line):
                parts = (groups["path"], groups["line"], groups.get("col"), _function(groups.get("name")))
                yield Fact("frame", tuple(p for p in parts if p), line)
            break
    for pattern in _TEST_RE:
        if match := pattern.match(line):
            yield Fact("test", tuple(g for g in match.groups() if g), line)
            break
    for pattern in _ASSERTION_RE:
        if match := pattern.match(line):
            yield Fact("assertion", (match["text"],), line)
            break


def _function(name: str | None) -> str | None:
    return name if name and "<" not in name else None


def _message_facts(message: str, code: str | None, line: str) -> Iterator[Fact]:
    if code is None and (trailing := _TRAILING_CODE.search(message)):
        code = trailing["code"]
    if code:
        yield Fact("code", (code,), line)
    for groups in _QUOTED.findall(message):
        yield Fact("name", ("".join(groups),), line)
    for value in _HASH.findall(message):
        yield Fact("hash", (value,), line)


def lost(original: str, kept: str, known: Iterable[Fact] | None = None) -> list[Fact]:
    """Facts of `original` (or the `known` ones) that `kept` does not hold, in a fixed order."""
    if kept == original:
        return []
    wanted = facts(original) if known is None else known
    lines = [line.strip() for line in kept.split("\n")]
    whole = {line.strip(" │|") for line in lines}
    left = [f for f in wanted if f.line not in whole]
    index: dict[str, list[str]] = {}
    for line in lines if left else ():
        for token in set(_TOKEN.findall(line)):
            index.setdefault(token, []).append(line)
    return sorted((f for f in left if not _holds(kept, lines, index, f)), key=lambda f: (f.kind, f.parts))


def _holds(kept: str, lines: list[str], index: dict[str, list[str]], fact: Fact) -> bool:
    longest = max(fact.parts, key=len)
    near = index.get(longest)
    if near is None:
        if longest not in kept or (len(fact.parts) == 1 and not longest.isdecimal()):
            return longest in kept
        near = [line for line in lines if longest in line]
    return any(all(_stands(part, line) for part in fact.parts) for line in near)


def _stands(part: str, line: str) -> bool:
    """A number must stand as a number; 12 is not kept by 120."""
    if not part.isdecimal():
        return part in line
    return re.search(rf"(?<!\d){part}(?!\d)", line) is not None


def check(original: str, kept: str, stage: str) -> None:
    """Raise `RetentionError` when `kept` lost facts of `original`."""
    missing = lost(original, kept)
    if missing:
        raise RetentionError(stage, missing)
