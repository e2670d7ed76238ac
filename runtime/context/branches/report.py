"""What comes back from a sub-agent: its last message, bounded, and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.context.branches.child import own_from
from deeproot.runtime.context.calls import calls_of
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.thinking import without_thinking

CALLS = "branch_calls"
"""Of a result's data: what the child called."""
MOST = 400
"""Tokens of a report."""


@dataclass(frozen=True, slots=True)
class Report:
    """`finished`: the child ended with a message that calls nothing. `tokens`: of `text`; `cut`: how many it lost."""

    text: str
    finished: bool
    tokens: int
    cut: int
    calls: tuple[Mapping[str, Any], ...]
    """What the child called, `{"name", "arguments"}`; on a fork, not what its parent had."""


def report_of(child: EventLog, count: Callable[[str], int], *, max_tokens: int = MOST) -> Report:
    """The child's report in at most `max_tokens`. `count`: tokens of a text.

    Raises ValueError if `max_tokens` leaves no room to say that something was cut.
    """
    text, finished = "", False
    calls: list[Mapping[str, Any]] = []
    for event in child.read(own_from(child)):
        if event.kind is EventKind.ASSISTANT:
            made = calls_of(event)
            calls += [{"name": c.get("name"), "arguments": c.get("arguments")} for c in made.values()]
            text, finished = without_thinking(child.text(event)).strip(), not made
    if not finished or not text:
        last = f" Its last words: {text}" if text else ""
        text, finished = f"No report: the sub-agent stopped after {len(calls)} calls.{last}", False
    short, cut = _bounded(text, count, max_tokens)
    return Report(short, finished, count(short), cut, tuple(calls))


def join(
    parent: EventLog,
    call_id: str,
    child: EventLog,
    count: Callable[[str], int],
    *,
    name: str = "delegate",
    uri: str = "agent://child",
    max_tokens: int = MOST,
) -> int:
    """Answer the parent's call `call_id` with the child's report, an untrusted claim as all that models say; its event.

    `uri`: by which the child's log is found again. All else of the child stays in its own log, but for what it called:
    that is noted beside the result, so that limits on calls hold for both together.
    """
    report = report_of(child, count, max_tokens=max_tokens)
    data = {"role": "tool", "message": {"name": name}, "uri": uri, CALLS: list(report.calls)}
    code = 0 if report.finished else 1
    return parent.append(EventKind.TOOL_RESULT, report.text, data=data, call_id=call_id, exit_code=code).seq


def _bounded(text: str, count: Callable[[str], int], most: int) -> tuple[str, int]:
    """The text's beginning in at most `most` tokens, and how many it lost."""
    whole = count(text)
    if whole <= most:
        return text, 0
    note = f"\n[cut: the report had {whole} tokens of at most {most}]"
    if count(note) >= most:
        raise ValueError(
            f"max_tokens is {most}; give more than {count(note)}, which the note on a cut report takes"
        )
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[:middle].rstrip() + note) <= most:
            low = middle
        else:
            high = middle - 1
    kept = text[:low].rstrip()
    return kept + note, whole - count(kept)
