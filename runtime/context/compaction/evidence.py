"""The template that every summary must fill: what was tried, what was run, how it failed, what is ruled out.

A summary that says only what succeeded sends the model back to what failed. So the sections are fixed, what the host can
read off the log is filled in by the host, and what a model writes is checked against the events that it stands for.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Count = Callable[[str], int]
SECTIONS = {
    "hypotheses": "Hypotheses tried",
    "commands": "Commands run",
    "failures": "Failure signatures",
    "ruled_out": "Ruled out",
    "facts": "Facts found",
}
_TRIMMED = (
    ("hypotheses", 3), ("commands", 6), ("hypotheses", 1), ("commands", 2), ("facts", 1), ("hypotheses", 0),
    ("commands", 0), ("facts", 0), ("ruled_out", 0), ("failures", 0),
)  # fmt: skip
"""How sections give way when room is short: down to so many of their newest entries, one after the other."""
_CITATION = re.compile(r"\s*\[(?:#\d+[ ,]*)+\]\s*$")


_FEWEST_VALUES = 6
"""Shorter lists of values are not halved."""


class EvidenceError(ValueError):
    """A summary does not fill the template or says what the events do not. The message names each fault."""


class Evidence(BaseModel):
    """One summary. Every entry is one line; what it rests on is named as `[#event]`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hypotheses: tuple[str, ...] = Field(description="what was believed and tried, and what became of it")
    commands: tuple[str, ...] = Field(description="calls that were made, verbatim, each with its outcome")
    failures: tuple[str, ...] = Field(description="error messages, verbatim")
    ruled_out: tuple[str, ...] = Field(description="settings, paths and ideas that are known not to work")
    facts: tuple[str, ...] = Field(default=(), description="identifiers, values, paths and decisions to keep")


@dataclass(frozen=True, slots=True)
class Grounds:
    """What a summary is checked against. `text`: all that the events say; `events`: their numbers."""

    text: str
    events: frozenset[int]


def parse_evidence(answer: str) -> Evidence:
    """The JSON object in a model's answer. Raises `EvidenceError` naming the fields that are missing or wrong."""
    start, end = answer.find("{"), answer.rfind("}")
    if start < 0 or end < start:
        raise EvidenceError("the answer holds no JSON object; give one with " + ", ".join(SECTIONS))
    try:
        return Evidence.model_validate(json.loads(answer[start : end + 1]))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:6])
        raise EvidenceError(f"the template is not filled: {faults}") from None
    except (ValueError, RecursionError) as error:
        raise EvidenceError(f"the answer is not JSON ({error})") from None


def check_evidence(evidence: Evidence, grounds: Grounds, *, cited: bool = False) -> None:
    """Raise `EvidenceError` if a failure or command is not in the events, an event is not among them, or, with `cited`,
    an entry names no event."""
    flat = _flat(grounds.text)
    faults = [
        f"{name}[{i}] is not in the events: {entry[:80]!r}"
        for name in ("failures", "commands")
        for i, entry in enumerate(getattr(evidence, name))
        if _flat(_bare(entry)) not in flat
    ]
    for name in SECTIONS:
        for i, entry in enumerate(getattr(evidence, name)):
            found = _CITATION.search(entry)
            numbers = [int(n) for n in re.findall(r"\d+", found[0])] if found else []
            strange = [n for n in numbers if n not in grounds.events]
            faults += [f"{name}[{i}] cites #{n}, which is none of these events" for n in strange]
            if cited and not numbers:
                faults.append(f"{name}[{i}] cites no event: {entry[:80]!r}; end it with [#number]")
    if faults:
        raise EvidenceError("; ".join(faults[:8]))


def completed(evidence: Evidence, known: Evidence) -> Evidence:
    """The model's account with what the host knows for certain put first."""

    def both(name: str) -> tuple[str, ...]:
        own: tuple[str, ...] = getattr(known, name)
        has = [_flat(_bare(entry)) for entry in own]
        more = [entry for entry in getattr(evidence, name) if not any(_flat(_bare(entry)) in h for h in has)]
        return (*own, *dict.fromkeys(one_line(entry) for entry in more))

    return Evidence(**{name: both(name) for name in SECTIONS})


def render_evidence(evidence: Evidence, max_tokens: int, count: Count) -> str:
    """The filled template in at most about `max_tokens`; entries that do not fit are counted, oldest first.

    Sections stand in one order and none is left out, so that the same evidence gives the same bytes.
    """
    kept: dict[str, list[str]] = {name: list(getattr(evidence, name)) for name in SECTIONS}
    sizes = {entry: count(f"- {entry}\n") for entries in kept.values() for entry in entries}
    text = _layout(evidence, kept)
    # Sizes of parts do not add up to that of the whole, so what a pass has left over is looked at again.
    while (over := count(text) - max_tokens) > 0:
        _trim(kept, sizes, over, count)
        shorter = _layout(evidence, kept)
        if shorter == text:
            break
        text = shorter
    return text


def _trim(kept: dict[str, list[str]], sizes: dict[str, int], over: int, count: Count) -> None:
    """Take entries away that have about `over` tokens, the least needed first."""
    for name, fewest in _TRIMMED:
        if name == "facts" and fewest:
            over = _halve_longest(kept[name], sizes, over, count)
        while over > 0 and len(kept[name]) > fewest:
            over -= sizes[kept[name].pop(0)]


def _halve_longest(entries: list[str], sizes: dict[str, int], over: int, count: Count) -> int:
    """Long lists of values lose their second half, the longest first, until `over` is none; what is then still over."""
    while over > 0 and entries:
        longest = max(range(len(entries)), key=lambda i: sizes[entries[i]])
        entry = entries[longest]
        values = _CITATION.sub("", entry).split(", ")
        if len(values) < _FEWEST_VALUES:
            break
        cited = entry[len(_CITATION.sub("", entry)) :]
        entries[longest] = ", ".join(values[: len(values) // 2]) + cited
        sizes[entries[longest]] = count(f"- {entries[longest]}\n")
        over -= sizes[entry] - sizes[entries[longest]]
    return over


def _layout(evidence: Evidence, kept: dict[str, list[str]]) -> str:
    lines: list[str] = []
    for name, title in SECTIONS.items():
        gone = len(getattr(evidence, name)) - len(kept[name])
        more = f" ({gone} more in the archive)" if gone else ""
        none = " none" if not kept[name] and not gone else ""
        lines.append(f"{title}:{none}{more}")
        lines += [f"- {entry}" for entry in kept[name]]
    return "\n".join(lines)


def one_line(text: str, limit: int = 400) -> str:
    """White space as single spaces, cut at `limit` characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def numbered(entry: str, seqs: Collection[int] | Sequence[int]) -> str:
    """An entry with the events that it rests on."""
    shown = sorted(set(seqs))[-3:]
    return f"{entry} [{' '.join(f'#{n}' for n in shown)}]"


def _bare(entry: str) -> str:
    """An entry without its citations, its outcome and its quotes."""
    text = _CITATION.sub("", entry)
    return re.split(r" (?:->|→|=>) ", text)[0].strip().strip("`").rstrip("…").strip()


def _flat(text: str) -> str:
    return re.sub(r"[\s\\]+", "", text)


def schema() -> dict[str, Any]:
    """The template as a JSON schema, for clients that can constrain an answer."""
    return Evidence.model_json_schema()
