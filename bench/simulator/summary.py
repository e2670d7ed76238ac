"""What a simulation has shown, as rows of a table."""

from collections.abc import Sequence

import numpy as np

from deeproot.bench.simulator.simulate import Record, Simulation

HEADS = (
    *(
        "policy",
        "requests",
        "mean TTFT, s",
        "p50",
        "p99",
        "worst",
        "prompt tokens cached",
        "worst overtaking",
    ),
    *("preemptions", "p99 gap, ms", "worst gap", "device busy", "steps", "host s"),
)
"""Overtaking: as a share of what is allowed. Steps: all that were taken."""


class Overtaken(Exception):
    """A request has waited for more than is stated."""


def rows_of(policy: str, simulation: Simulation, host_s: float) -> list[list[str]]:
    """A row of `HEADS` for all requests and, where there are several kinds, one for each.

    Raises Overtaken if the bound on overtaking does not hold.
    """
    records = simulation.records
    kinds = sorted({record.kind for record in records})
    of_all = {
        "worst overtaking": f"{worst_overtaking(records):.2f}",
        "preemptions": f"{simulation.scheduler.counters.preemptions:,}",
        "device busy": f"{simulation.runner.busy_s / simulation.clock.now:.0%}",
        "steps": f"{simulation.num_steps:,}",
        "host s": f"{host_s:.0f}",
    }
    rows = [{"policy": policy, **_latencies(records), **of_all}]
    if len(kinds) > 1:
        rows += [
            {"policy": f"{policy}: {kind}", **_latencies([r for r in records if r.kind == kind])}
            for kind in kinds
        ]
    return [[row.get(head, "") for head in HEADS] for row in rows]


def _latencies(records: Sequence[Record]) -> dict[str, str]:
    """What can be said of any requests."""
    ttft = np.array([record.first_token - record.came for record in records])
    gaps = np.array([gap for record in records for gap in record.gaps] or [0.0]) * 1000
    prompt = sum(record.num_prompt for record in records)
    cached = 1 - sum(record.num_computed for record in records) / prompt
    return {
        "requests": f"{len(records):,}",
        "mean TTFT, s": f"{ttft.mean():.3f}",
        "p50": f"{np.percentile(ttft, 50):.3f}",
        "p99": f"{np.percentile(ttft, 99):.3f}",
        "worst": f"{ttft.max():.2f}",
        "prompt tokens cached": f"{cached:.1%}",
        "p99 gap, ms": f"{np.percentile(gaps, 99):.0f}",
        "worst gap": f"{gaps.max():.0f}",
    }


def overtaken(records: Sequence[Record]) -> list[int]:
    """Of each request, in order of arrival: prompt tokens computed by later ones that started before it."""
    came, started = (np.array([getattr(one, name) for one in records]) for name in ("came", "started"))
    by_start = started.argsort(kind="stable")
    starts, computed = started[by_start], np.array([one.num_computed for one in records])[by_start]
    first = np.searchsorted(starts, came, side="right").tolist()
    end = np.searchsorted(starts, started, side="left").tolist()
    return [
        int(computed[a:b][by_start[a:b] > i].sum()) for i, (a, b) in enumerate(zip(first, end, strict=True))
    ]


def worst_overtaking(records: Sequence[Record]) -> float:
    """The largest share of its allowance by which a request was overtaken; the request that crosses the line is counted, so
    it can be a little above 1. Raises Overtaken for a request that was overtaken by more than that."""
    shares = [0.0]
    largest = max(record.num_computed for record in records)
    for i, (record, tokens) in enumerate(zip(records, overtaken(records), strict=True)):
        if tokens > record.allowance + largest:
            raise Overtaken(
                f"request {i} was overtaken by {tokens} tokens where {record.allowance} are allowed and the one that "
                f"crosses the line, of at most {largest}"
            )
        if tokens:
            shares.append(tokens / max(1, record.allowance))
    return max(shares)
