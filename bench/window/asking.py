"""Completion by length: probes put to a model by API."""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Answer, Server
from deeproot.bench.live.drive import Load, drive
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Table
from deeproot.bench.window.probes import WITH_STATUS, Probe, Task, make_probes
from deeproot.bench.window.usable import largest_usable, wilson

_MAX_TOKENS = 48
_QUICK_LENGTHS = (256, 1024)


@dataclass(frozen=True, slots=True)
class Asked:
    """A probe and what came of it; a request that failed counts as not passed."""

    probe: Probe
    answer: Answer

    @property
    def passed(self) -> bool:
        return self.answer.error is None and self.probe.passed(self.answer.said)


def ask_model(args: argparse.Namespace) -> list[Asked]:
    """Put every probe to the server. Raises ValueError if it does not answer at all."""
    lengths = _QUICK_LENGTHS if args.quick else tuple(args.lengths)
    probes = make_probes(lengths, (0.5,) if args.quick else tuple(args.depths), args.seed, args.repeats)
    asks = [
        Ask(f"probe {i}", 1, 0.0, _MAX_TOKENS, messages=({"role": "user", "content": probe.prompt},))
        for i, probe in enumerate(probes)
    ]

    async def all_of_them() -> list[Answer]:
        server = Server("model", args.url, args.api_key, args.served_model)
        try:
            await server.find_model()
            with progress("window", len(asks)) as advance:
                return list((await drive(server, asks, Load(concurrency=args.concurrency), advance)).answers)
        finally:
            await server.http.aclose()

    answers = asyncio.run(all_of_them())
    if all(answer.error is not None for answer in answers):
        raise ValueError(f"every request failed; the first: {answers[0].error}")
    return [Asked(probe, answer) for probe, answer in zip(probes, answers, strict=True)]


def shares(asked: Sequence[Asked], task: Task | None = None, status: bool | None = None) -> dict[int, float]:
    """Passed share by length, of one task or all, with or without a status bar or both."""
    found: dict[int, list[bool]] = {}
    for one in asked:
        if task in (None, one.probe.task) and status in (None, one.probe.status):
            found.setdefault(one.probe.tokens, []).append(one.passed)
    return {length: sum(passed) / len(passed) for length, passed in sorted(found.items())}


def usable(asked: Sequence[Asked], threshold: float) -> int | None:
    """M*: by all tasks without a status bar."""
    return largest_usable(shares(asked, status=False), threshold)


def metrics(asked: Sequence[Asked]) -> tuple[Metric, ...]:
    """Each share."""
    return tuple(
        Metric(
            name=f"passed, {task.value}{', status bar' if status else ''}, {length} tokens",
            unit="",
            how=How.MEASURED,
            samples=(share,),
            higher_is_better=True,
        )
        for task in Task
        for status in (False, True)
        for length, share in shares(asked, task, status).items()
    )


def table(asked: Sequence[Asked]) -> Table:
    """By task and length: passed of how many, and where the share lies."""
    lengths = sorted({one.probe.tokens for one in asked})
    rows = []
    for task in Task:
        for status in (False, True) if task in WITH_STATUS else (False,):
            cells = []
            for length in lengths:
                taken = [
                    one.passed
                    for one in asked
                    if (one.probe.task, one.probe.status, one.probe.tokens) == (task, status, length)
                ]
                low, high = wilson(sum(taken), len(taken))
                cells.append(f"{sum(taken)} of {len(taken)} ({low:.0%} to {high:.0%})")
            rows.append((f"{task.value}{', with a status bar' if status else ''}", *cells))
    columns = (Column("task"), *(Column(f"{length:,} tokens", How.MEASURED) for length in lengths))
    sizes = {
        length: max((one.answer.prompt_tokens or 0) for one in asked if one.probe.tokens == length)
        for length in lengths
    }
    said = "; ".join(f"{length:,}: {size:,}" for length, size in sizes.items() if size)
    note = "In brackets where the share lies with 95%." + (
        f" Longest prompts by the server's count: {said}." if said else ""
    )
    return Table("Right answers by prompt length", columns, tuple(rows), note)


def depth_table(asked: Sequence[Asked]) -> Table:
    """Needles by depth, over all lengths."""
    needles = (Task.NEEDLE, Task.NEEDLES, Task.CHAIN)
    depths = sorted({one.probe.depth for one in asked})
    rows = []
    for task in needles:
        cells = []
        for depth in depths:
            taken = [one.passed for one in asked if (one.probe.task, one.probe.depth) == (task, depth)]
            cells.append(f"{sum(taken)} of {len(taken)}")
        rows.append((task.value, *cells))
    columns = (Column("task"), *(Column(f"depth {depth:.0%}", How.MEASURED) for depth in depths))
    return Table("Needles by depth, all lengths", columns, tuple(rows), "Depth: 0% is the log's start.")


def chart(asked: Sequence[Asked]) -> Chart:
    """Passed share by length, task by task."""
    lines = [
        Line(
            f"{task.value}{', status bar' if status else ''}",
            tuple((float(length), 100 * share) for length, share in shares(asked, task, status).items()),
        )
        for task in Task
        for status in ((False, True) if task in WITH_STATUS else (False,))
    ]
    return Chart(
        key="completion_by_length",
        title="Right answers by prompt length",
        x="prompt tokens, about",
        y="% right",
        how=How.MEASURED,
        lines=tuple(lines),
        log_x=True,
    )
