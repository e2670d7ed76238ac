"""What a live replay shows: latencies, rates, cached tokens, and servers beside each other, pair by pair."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from deeproot.bench.live.client import Answer
from deeproot.bench.live.counters import Counted
from deeproot.bench.live.drive import Round
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Table
from deeproot.bench.report.text import percentile_cells
from deeproot.bench.report.verdicts import middle_95, resampled_medians

NOT_SAID = "not said"
_SHARES = (50, 90, 99)
_MOST_TURNS = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer must keep to count for goodput, in seconds."""

    ttft_s: float
    tpot_s: float

    def kept(self, answer: Answer) -> bool:
        """A single token has no time per token, and keeps it."""
        first = answer.ttft_s
        each = answer.tpot_s
        return (
            answer.error is None
            and first is not None
            and first <= self.ttft_s
            and (each is None or each <= self.tpot_s)
        )


@dataclass(frozen=True, slots=True)
class Served:
    """One server's rounds, and what it counted itself over them (None: it does not say)."""

    name: str
    rounds: tuple[Round, ...]
    counted: Counted | None

    @property
    def good(self) -> list[Answer]:
        return [answer for one in self.rounds for answer in one.answers if answer.error is None]

    @property
    def failed(self) -> list[Answer]:
        return [answer for one in self.rounds for answer in one.answers if answer.error is not None]

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.rounds)


def values(answers: Sequence[Answer], take: Callable[[Answer], float | None]) -> tuple[float, ...]:
    """Of those answers that have it."""
    return tuple(value for answer in answers if (value := take(answer)) is not None)


_LATENCIES: dict[str, Callable[[Sequence[Answer]], tuple[float, ...]]] = {
    "TTFT": lambda answers: values(answers, lambda a: a.ttft_s),
    "ITL": lambda answers: tuple(
        float(gap) for a in answers if len(a.pieces) > 1 for gap in np.diff(np.array(a.pieces))
    ),
    "TPOT": lambda answers: values(answers, lambda a: a.tpot_s),
    "end to end": lambda answers: values(answers, lambda a: a.total_s),
}


def metrics(served: Sequence[Served], limits: Limits) -> tuple[Metric, ...]:
    """Latencies of every answer, and rates of every round."""
    made: list[Metric] = []
    for one in served:
        for name, of in _LATENCIES.items():
            taken = tuple(1e3 * second for second in of(one.good))
            if taken:
                made.append(Metric(name=f"{name}, {one.name}", unit="ms", how=How.MEASURED, samples=taken))
        for name, unit, count in _rates(limits):
            rates = tuple(count(r.answers) / r.seconds for r in one.rounds)
            made.append(
                Metric(
                    name=f"{name}, {one.name}",
                    unit=unit,
                    how=How.MEASURED,
                    samples=rates,
                    higher_is_better=True,
                )
            )
        share = cached_share(one.good)
        if share is not None:
            made.append(
                Metric(
                    name=f"cached share of prompts, {one.name}",
                    unit="",
                    how=How.COUNTED,
                    samples=(share,),
                    higher_is_better=True,
                )
            )
    return tuple(made)


def _rates(limits: Limits) -> list[tuple[str, str, Callable[[Sequence[Answer]], float]]]:
    return [
        ("output rate", "tok/s", lambda answers: float(sum(a.output_tokens or 0 for a in answers))),
        ("prompt rate", "tok/s", lambda answers: float(sum(a.prompt_tokens or 0 for a in answers))),
        ("goodput", "requests/s", lambda answers: float(sum(limits.kept(a) for a in answers))),
    ]


def cached_share(answers: Sequence[Answer]) -> float | None:
    """By what the server says with each answer; None if it does not."""
    said = [a for a in answers if a.prompt_tokens and a.cached_tokens is not None]
    total = sum(a.prompt_tokens or 0 for a in said)
    return sum(a.cached_tokens or 0 for a in said) / total if total else None


def latency_table(served: Sequence[Served]) -> Table:
    """Milliseconds at the 50th, 90th and 99th percentile."""
    rows = []
    for name, of in _LATENCIES.items():
        for one in served:
            taken = [1e3 * second for second in of(one.good)]
            rows.append((f"{name}, {one.name}", f"{len(taken):,}", *percentile_cells(taken, _SHARES)))
    columns = (
        Column("milliseconds"),
        Column("samples", How.COUNTED),
        *(Column(f"p{share}", How.MEASURED) for share in _SHARES),
    )
    return Table("Latencies", columns, tuple(rows))


def rate_table(served: Sequence[Served], limits: Limits) -> Table:
    """Throughput and goodput, of all rounds together."""
    rows = []
    for one in served:
        answers = [answer for r in one.rounds for answer in r.answers]
        rates = [count(answers) / one.seconds for _, _, count in _rates(limits)]
        rows.append(
            (one.name, f"{len(answers):,}", f"{len(one.failed):,}", *(f"{rate:,.2f}" for rate in rates))
        )
    columns = (
        Column("server"),
        Column("requests", How.COUNTED),
        Column("failed", How.COUNTED),
        Column("output tok/s", How.MEASURED),
        Column("prompt tok/s", How.MEASURED),
        Column("goodput, requests/s", How.MEASURED),
    )
    note = f"Goodput: TTFT of at most {1e3 * limits.ttft_s:,.0f} ms and TPOT of at most {1e3 * limits.tpot_s:,.0f} ms."
    return Table("Rates", columns, tuple(rows), note)


def cache_table(served: Sequence[Served], infinite: float, how_infinite: str) -> Table:
    """Cached tokens as each server says, with its answers and in its own counters, and as an infinite cache would have."""
    rows = []
    for one in served:
        good, counted = one.good, one.counted
        share = cached_share(good)
        rows.append(
            (
                one.name,
                f"{sum(a.prompt_tokens or 0 for a in good):,}",
                NOT_SAID if share is None else f"{sum(a.cached_tokens or 0 for a in good):,}",
                NOT_SAID if share is None else f"{share:.1%}",
                NOT_SAID if counted is None else counted.engine,
                *(
                    NOT_SAID
                    if counted is None or (number := getattr(counted, name)) is None
                    else f"{number:,.0f}"
                    for name in ("cached", "computed")
                ),
                f"{infinite:.1%}",
            )
        )
    columns = (
        Column("server"),
        Column("prompt tokens", How.COUNTED),
        Column("cached, by answers", How.COUNTED),
        Column("share", How.COUNTED),
        Column("/metrics of"),
        Column("cached, by /metrics", How.COUNTED),
        Column("computed, by /metrics", How.COUNTED),
        Column("an infinite cache", How.COUNTED),
    )
    return Table("Cached tokens", columns, tuple(rows), how_infinite)


def pair_table(served: Sequence[Served]) -> Table | None:
    """Each other server's time over the first one's, for the same ask in the same round."""
    if len(served) < 2:
        return None
    base, *others = served
    rows = []
    for other in others:
        for name, of in (("TTFT", lambda a: a.ttft_s), ("end to end", lambda a: a.total_s)):
            ratios = _ratios(base, other, of)
            if not ratios:
                continue
            low, high = _interval(ratios)
            rows.append(
                (
                    f"{name}, {other.name} over {base.name}",
                    f"{len(ratios):,}",
                    f"{median(ratios):.2f}",
                    f"{low:.2f} to {high:.2f}",
                )
            )
    columns = (
        Column("ratio"),
        Column("pairs", How.COUNTED),
        Column("median", How.MEASURED),
        Column("95% of the median", How.MEASURED),
    )
    return Table("Pair by pair: the same ask in the same round", columns, tuple(rows))


def _ratios(base: Served, other: Served, of: Callable[[Answer], float | None]) -> list[float]:
    made = []
    for one, two in zip(base.rounds, other.rounds, strict=True):
        for a, b in zip(one.answers, two.answers, strict=True):
            mine, theirs = of(a), of(b)
            if a.error is None and b.error is None and mine and theirs:
                made.append(theirs / mine)
    return made


def _interval(ratios: Sequence[float]) -> tuple[float, float]:
    return middle_95(resampled_medians(ratios, np.random.default_rng(0), 2000))


def charts(served: Sequence[Served]) -> tuple[Chart, ...]:
    """TTFT by turn, and its distribution."""
    by_turn, spread = [], []
    for one in served:
        turns: dict[int, list[float]] = {}
        for answer in one.good:
            if answer.ttft_s is not None:
                turns.setdefault(answer.turn, []).append(1e3 * answer.ttft_s)
        points = tuple((float(turn), median(found)) for turn, found in sorted(turns.items()))[:_MOST_TURNS]
        by_turn.append(Line(one.name, points))
        taken = sorted(value for found in turns.values() for value in found)
        shares = np.linspace(0, 100, min(len(taken), _MOST_TURNS)) if taken else np.empty(0)
        spread.append(Line(one.name, tuple((float(np.percentile(taken, s)), float(s)) for s in shares)))
    made = []
    if any(len(line.points) > 1 for line in by_turn):
        made.append(
            Chart(
                key="ttft_by_turn",
                title="Time to first token by turn of a session, medians",
                x="turn",
                y="ms",
                how=How.MEASURED,
                lines=tuple(by_turn),
            )
        )
    made.append(
        Chart(
            key="ttft_spread",
            title="Time to first token of all requests",
            x="ms",
            y="% of requests within",
            how=How.MEASURED,
            lines=tuple(spread),
            log_x=True,
        )
    )
    return tuple(made)
