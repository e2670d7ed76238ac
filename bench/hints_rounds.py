"""What rounds of `hints_live` found: kept in a file from one call to the next, and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from deeproot.bench.hints_player import Answered
from deeproot.bench.report.result import Column, How, Metric, Table

KINDS = {"agents' turns": "agent", "single prompts": "cold", "all": None}
_SHARES = (50, 99)
_COUNTED = (
    "prompt tokens cached", "of the agents'", "found under leases", "computed", "pages evicted", "preemptions", "answered", "refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens that the agents work with, the longest request, tokens of a page, and bytes of one."""

    working: int
    longest: int
    page: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Run:
    """One trace, played once to one server. `counters`: the server's own at its end."""

    arm: str
    seed: int
    """Of the trace: each round has its own, the same to every server."""
    sizes: Sizes
    num_pages: int
    answers: list[Answered]
    seconds: float
    counters: Mapping[str, float]

    def ttfts(self, kind: str | None) -> list[float]:
        return [a.ttft_s for a in self.answers if a.ttft_s is not None and kind in (None, a.kind)]

    @property
    def hit_rate(self) -> float:
        """By the server's counters."""
        return self.counters["deeproot_cached_tokens_total"] / self.counters["deeproot_prompt_tokens_total"]

    @property
    def leased_hits(self) -> float:
        """Cached tokens that were under a lease when they were found."""
        names = (f'deeproot_cache_hit_tokens_total{{class="{zone}"}}' for zone in ("leaf", "trunk", "root"))
        return sum(self.counters[name] for name in names)


class _Kept(msgspec.Struct, frozen=True):
    settings: dict[str, Any]
    run: Run


def keep(path: Path, settings: Mapping[str, Any], run: Run) -> None:
    """Add a run to the file. settings: what runs must have in common."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(_Kept(dict(settings), run)) + b"\n")


def kept(path: Path, settings: Mapping[str, Any]) -> list[Run]:
    """The runs in the file; none if there is no file. Raises ValueError for those of other settings, and for other files."""
    runs = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            found = msgspec.json.decode(line, type=_Kept)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path}, line {number}: not a round that was kept: {error}") from None
        for name in sorted({*settings, *found.settings}):
            then, now = found.settings.get(name), settings.get(name)
            if then != now:
                raise ValueError(f"{path} holds rounds with {name} {then}, not {now}: give another file")
        runs.append(found.run)
    return runs


def pairs(runs: Sequence[Run], arms: Sequence[str]) -> list[tuple[Run, ...]]:
    """The rounds that every arm has: a run of each, in the order of `arms`."""
    by_place = {(run.seed, run.arm): run for run in runs}
    seeds = sorted({run.seed for run in runs})
    return [
        tuple(by_place[seed, arm] for arm in arms)
        for seed in seeds
        if all((seed, arm) in by_place for arm in arms)
    ]


def each_round(runs: Sequence[Run]) -> Table:
    """A row for each run."""
    rows = [
        (
            f"{run.arm}, seed {run.seed}",
            f"{run.num_pages}",
            *_counted(run),
            *(_ms(run.ttfts(kind), share) for kind in KINDS.values() for share in _SHARES),
            f"{run.seconds:.0f}",
        )
        for run in runs
    ]
    timed = [f"TTFT of {name}, p{share}, ms" for name in KINDS for share in _SHARES]
    columns = [Column("order of eviction"), *(Column(title, How.COUNTED) for title in ("pages", *_COUNTED))]
    columns += [Column(title, How.MEASURED) for title in (*timed, "seconds")]
    return Table("The same requests to each", tuple(columns), tuple(rows))


def _counted(run: Run) -> tuple[str, ...]:
    agents = [a for a in run.answers if a.kind == "agent" and a.error is None]
    return (
        f"{run.hit_rate:.1%}",
        f"{sum(a.cached for a in agents) / max(1, sum(a.prompt for a in agents)):.1%}",
        f"{run.leased_hits:,.0f}",
        f"{run.counters['deeproot_computed_tokens_total']:,.0f}",
        f"{run.counters['deeproot_evicted_pages_total']:,.0f}",
        f"{run.counters['deeproot_preemptions_total']:,.0f}",
        f"{sum(a.error is None for a in run.answers)}",
        f"{sum(a.error is not None for a in run.answers)}",
    )


def _ms(seconds: Sequence[float], share: int) -> str:
    return f"{np.percentile(seconds, share) * 1e3:,.0f}" if seconds else "-"


def all_rounds(rounds: Sequence[tuple[Run, ...]], arms: Sequence[str]) -> Table:
    """Percentiles over all rounds together, and how much the second arm's differ from the first one's: in all, and in the
    rounds where they do so least and most. rounds: of `pairs`, for two arms."""
    rows = []
    for name, kind in KINDS.items():
        for share in _SHARES:
            both = [[run.ttfts(kind) for run in column] for column in zip(*rounds, strict=True)]
            if not both or not all(all(column) for column in both):
                continue
            first, second = (float(np.percentile(np.concatenate(column), share)) for column in both)
            ratios = [
                float(np.percentile(b, share) / np.percentile(a, share)) for a, b in zip(*both, strict=True)
            ]
            rows.append(
                (
                    f"{name}, p{share}",
                    f"{sum(map(len, both[0]))}",
                    f"{first * 1e3:,.0f}",
                    f"{second * 1e3:,.0f}",
                    f"{second / first - 1:+.0%}",
                    f"{min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}",
                )
            )
    columns = [Column("time to first token"), Column("requests of each", How.COUNTED)]
    columns += [Column(f"{arm}, ms", How.MEASURED) for arm in arms]
    columns += [Column(title, How.MEASURED) for title in ("difference", "in single rounds")]
    note = "A percentile of a single round is noisy: what it is in the rounds where the difference is least and most says how much."
    return Table(f"All {len(rounds)} rounds together", tuple(columns), tuple(rows), note)


def metrics(runs: Sequence[Run], arms: Sequence[str]) -> tuple[Metric, ...]:
    made = []
    for arm in arms:
        own = [run for run in runs if run.arm == arm]
        hits = tuple(run.hit_rate for run in own)
        made.append(
            Metric(name=f"cached share, {arm}", unit="", how=How.COUNTED, samples=hits, higher_is_better=True)
        )
        for kind in ("agent", "cold"):
            samples = tuple(1e3 * s for run in own for s in run.ttfts(kind))
            if samples:
                made.append(Metric(name=f"TTFT {kind}, {arm}", unit="ms", how=How.MEASURED, samples=samples))
    return tuple(made)
