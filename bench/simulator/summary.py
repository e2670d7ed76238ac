"""What a simulation has shown, as rows of a table."""

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from deeproot.bench.simulator.simulate import Record, Simulation

HEAD = (
    "| policy | requests | mean TTFT, s | p50 | p99 | worst | prompt tokens cached | worst overtaking | preemptions |"
    " p99 gap, ms | worst gap | device busy | checked steps | host s |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def row(policy: str, simulation: Simulation, host_s: float) -> list[str]:
    """A line for all requests and, where there are several kinds, one for each."""
    records = simulation.records
    kinds = sorted({record.kind for record in records})
    lines = [_line(policy, records, simulation, host_s)]
    if len(kinds) > 1:
        lines += [
            _line(f"{policy}: {kind}", [r for r in records if r.kind == kind], simulation, None)
            for kind in kinds
        ]
    return lines


def _line(name: str, records: Sequence[Record], simulation: Simulation, host_s: float | None) -> str:
    ttft = np.array([record.first_token - record.came for record in records])
    gaps = np.array([gap for record in records for gap in record.gaps] or [0.0]) * 1000
    prompt = sum(record.num_prompt for record in records)
    cached = 1 - sum(record.num_computed for record in records) / prompt
    cells = [
        name,
        f"{len(records):,}",
        f"{ttft.mean():.3f}",
        *(f"{np.percentile(ttft, q):.3f}" for q in (50, 99)),
        f"{ttft.max():.2f}",
        f"{cached:.1%}",
    ]
    if host_s is None:
        return (
            "| "
            + " | ".join([*cells, "", "", f"{np.percentile(gaps, 99):.0f}", f"{gaps.max():.0f}"])
            + " | | | |"
        )
    cells += [
        f"{worst_overtaking(records):.2f} of what is allowed",
        f"{simulation.scheduler.counters.preemptions:,}",
        f"{np.percentile(gaps, 99):.0f}",
        f"{gaps.max():.0f}",
        f"{simulation.runner.busy_s / simulation.clock.now:.0%}",
        f"{simulation.num_steps:,}",
        f"{host_s:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def overtaken(records: Sequence[Record]) -> list[int]:
    """Of each request, in order of arrival: prompt tokens computed by later ones that started before it."""
    by_start = sorted(range(len(records)), key=lambda i: records[i].started)
    starts = [records[i].started for i in by_start]
    found = []
    for i, record in enumerate(records):
        window = by_start[bisect_right(starts, record.came) : bisect_right(starts, record.started)]
        earlier = (records[j] for j in window if j > i and records[j].started < record.started)
        found.append(sum(one.num_computed for one in earlier))
    return found


def worst_overtaking(records: Sequence[Record]) -> float:
    """The largest share of its allowance by which a request was overtaken, the request that crossed the line left out."""
    shares = [0.0]
    for record, tokens in zip(records, overtaken(records), strict=True):
        if tokens:
            shares.append(tokens / max(1, record.allowance))
    return max(shares)
