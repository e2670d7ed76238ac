"""The template filled from the log alone: no model, the same log gives the same text."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deeproot.runtime.context.compaction.escrow import diagnose
from deeproot.runtime.context.compaction.evidence import Evidence, Grounds, numbered, one_line
from deeproot.runtime.context.compaction.turns import Call, Turn, all_calls
from deeproot.runtime.context.extract.extract import worth_extracting

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_VALUE = re.compile(
    r"(?<![\w./-])(?:[\w.-]*/[\w./-]+(?::\d+)?|--?[A-Za-z][\w-]*=\S+|[A-Za-z_][\w-]*\d[\w-]*|\d[\w-]*[A-Za-z][\w-]*"
    r"|\d{3,}|[\w.+-]+@[\w.-]+\.\w+)(?![\w/])"
)
"""Words that no model guesses right: paths, settings, identifiers with digits, numbers, addresses."""
_MOST_VALUES = 40
_TELLING = re.compile(
    r"\w(?:Error|Exception|Failure)\b|\b[EF]\d{3,4}\b|\berror(?:\[\w+\])?:|[Ff]atal|FATAL|FAILED|panic|refused|denied"
)
_LINE_NUMBER = re.compile(r"^\s*\d+(?::|\t)", re.MULTILINE)
_THINKING = re.compile(r"<think>.*?(?:</think>|$)", re.DOTALL)


def extract_evidence(turns: Sequence[Turn], query: str = "") -> Evidence:
    """Fill the template. `query`: facts that share words with it stand last, which is where they are kept longest."""
    commands: dict[str, list[Call]] = {}
    for call in all_calls(turns):
        commands.setdefault(call.title(), []).append(call)
    failures: dict[str, list[int]] = {}
    ruled_out = []
    for title, calls in commands.items():
        first_lines = []
        for call in calls:
            found, _ = diagnose(call)
            if found is not None:
                lines = signature(found.text)
                first_lines += lines
                for line in lines if (call.result or "").strip() else ():
                    failures.setdefault(line, []).append(call.seq)
        if first_lines:
            entry = f"{one_line(title, 200)} -> {one_line(first_lines[0], 160)}"
            ruled_out.append(numbered(entry, [c.seq for c in calls]))
    return Evidence(
        hypotheses=tuple(_hypotheses(turns)),
        commands=tuple(
            numbered(_outcome(title, calls), [c.seq for c in calls]) for title, calls in commands.items()
        ),
        failures=tuple(numbered(line, seqs) for line, seqs in failures.items()),
        ruled_out=tuple(ruled_out),
        facts=tuple(_ranked(_facts(turns), query)),
    )


def grounds_of(turns: Sequence[Turn]) -> Grounds:
    """What the turns say, for checking a model's account of them."""
    calls = all_calls(turns)
    texts = [turn.said for turn in turns] + [
        text for call in calls for text in (call.title(), call.command, call.result or "")
    ]
    return Grounds("\n".join(texts), frozenset([turn.seq for turn in turns] + [call.seq for call in calls]))


def signature(text: str, most: int = 3) -> list[str]:
    """The lines of a diagnostic by which a failure is known again: its heads, not its frames and details."""
    lines = [line.strip() for line in text.split("\n") if line.strip() and not line.startswith("[")]
    telling = [line for line in lines if _TELLING.search(line)]
    return [
        one_line(line) for line in list(dict.fromkeys([*telling, *lines]))[: min(most, len(telling) or 1)]
    ]


def _outcome(title: str, calls: Sequence[Call]) -> str:
    codes = [call.exit_code for call in calls if call.exit_code is not None]
    times = f", {len(calls)} times" if len(calls) > 1 else ""
    if codes:
        ended = f"exit {codes[-1]}"
    elif calls[-1].result is None:
        ended = "no result"
    else:
        ended = "failed" if diagnose(calls[-1])[0] is not None else "ok"
    return f"{one_line(title, 300)} -> {ended}{times}"


def _hypotheses(turns: Sequence[Turn]) -> Iterator[str]:
    """What the model said before it acted: its own claims, first sentences only."""
    for turn in turns:
        said = _THINKING.sub("", turn.said).split("\n```")[0]
        sentences = _SENTENCE.split(" ".join(said.split()))
        words = one_line(" ".join(sentences[:2]), 240)
        if words:
            yield numbered(words, [turn.seq])


def _facts(turns: Sequence[Turn]) -> Iterator[tuple[str, int]]:
    """(values of one result, event), each value where it stood last."""
    last: dict[str, int] = {}
    for call in all_calls(turns):
        for value in _values(call):
            last[value] = call.seq
    by_event: dict[int, list[str]] = {}
    for value, seq in last.items():
        by_event.setdefault(seq, []).append(value)
    for seq in sorted(by_event):
        yield ", ".join(sorted(by_event[seq], key=_guessable)[:_MOST_VALUES]), seq


def _guessable(value: str) -> int:
    """Identifiers come first, which nobody guesses right; words and plain numbers last."""
    shown = value.rsplit("=", 1)[-1]
    letters, digits = any(c.isalpha() for c in shown), any(c.isdigit() for c in shown)
    if letters and digits:
        return 0
    return 1 if (digits and not shown.isdecimal()) or "/" in shown or "@" in shown else 2


def _values(call: Call) -> Iterator[str]:
    result = call.result or ""
    try:
        document = json.loads(result)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, (Mapping, list)):
        yield from _leaves(document, "")
        return
    shows = call.shell and not worth_extracting(call.command)
    seen: dict[str, None] = {}
    for match in _VALUE.finditer(_LINE_NUMBER.sub("", result[:20_000])):
        value = match[0].rstrip(".,:;")
        if len(value) >= 3 and not (shows and value.isdecimal()):
            seen[value] = None
    yield from seen


def _leaves(value: Any, name: str, depth: int = 0) -> Iterator[str]:
    """`name=value` of a JSON document's leaves; lists of plain values on one line."""
    if depth > 8:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, str(key), depth + 1)
    elif isinstance(value, list):
        plain = [item for item in value if not isinstance(item, (Mapping, list))]
        if plain and len(plain) == len(value):
            yield f"{name}={' '.join(map(str, plain))}" if name else " ".join(map(str, plain))
        else:
            for item in value:
                yield from _leaves(item, name, depth + 1)
    elif value not in (None, "", False, True):
        yield f"{name}={value}" if name else str(value)


def _ranked(facts: Iterator[tuple[str, int]], query: str) -> list[str]:
    words = set(re.findall(r"\w{3,}", query.lower()))

    def shared(fact: tuple[str, int]) -> int:
        return len(words & set(re.findall(r"\w{3,}", fact[0].lower())))

    ordered = sorted(facts, key=shared) if words else list(facts)
    return [numbered(one_line(text, 1_000), [seq]) for text, seq in ordered]
