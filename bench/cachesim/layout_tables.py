"""What `deeproot bench layouts` shows of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.bench.cachesim.fidelity import Fidelity
from deeproot.bench.cachesim.replaying import Totals, totals_metrics
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Table

_NONE = "nothing to count"


@dataclass(frozen=True, slots=True)
class Row:
    """One layout. `totals`: by cache; `over`: calls whose working set could not be made to fit the budget; `floor_s`,
    `ttft_s`: means over the calls, the second None where it was not measured; `hits`: by turn."""

    layout: str
    calls: int
    over: int
    staged: int
    totals: tuple[Totals, ...]
    fidelity: Fidelity
    floor_s: float
    ttft_s: float | None
    hits: tuple[tuple[int, float], ...]

    @property
    def priced(self) -> list[Totals]:
        """Of the caches that have a price."""
        return [totals for totals in self.totals if totals.dollars is not None]

    def dollars_a_turn(self, totals: Totals) -> float:
        return (totals.dollars or 0.0) / self.calls


def metrics(rows: Sequence[Row]) -> tuple[Metric, ...]:
    """Every count, and the times, by layout."""
    made: list[Metric] = []
    for row in rows:
        for totals in row.totals:
            made += totals_metrics(totals, f"{row.layout}: {totals.cache}")
        made.append(
            Metric(name=f"staged, {row.layout}", unit="tokens", how=How.COUNTED, samples=(float(row.staged),))
        )
        made.append(
            Metric(name=f"TTFT floor, {row.layout}", unit="ms", how=How.FLOOR, samples=(1e3 * row.floor_s,))
        )
        if row.ttft_s is not None:
            made.append(
                Metric(name=f"TTFT, {row.layout}", unit="ms", how=How.MEASURED, samples=(1e3 * row.ttft_s,))
            )
        for name, value, higher in _fidelity(row.fidelity):
            if value is not None:
                made.append(
                    Metric(
                        name=f"{name}, {row.layout}",
                        unit="",
                        how=How.COUNTED,
                        samples=(value,),
                        higher_is_better=higher,
                    )
                )
    return tuple(made)


def _fidelity(found: Fidelity) -> list[tuple[str, float | None, bool]]:
    return [
        ("rules kept", found.rules, True),
        ("associative facts kept", found.facts, True),
        ("C_r", found.c_r, True),
        ("U_eff", found.u_eff, True),
        ("stale spans a call", found.stale, False),
        ("unmarked stale spans a call", found.unmarked, False),
    ]


def tables(rows: Sequence[Row], *, ablation: bool, floor: str) -> tuple[Table, ...]:
    """Hits, cost and fidelity; for an ablation what each part was worth, the most first."""
    made = (_hits(rows), _cost(rows, floor), _kept(rows))
    return (_worth(rows), *made) if ablation else made


def _hits(rows: Sequence[Row]) -> Table:
    columns = ("tokens staged", "over budget", *(totals.cache for totals in rows[0].totals))
    cells = tuple(
        (row.layout, f"{row.staged:,}", str(row.over or "-"), *(f"{t.hit_rate:.1%}" for t in row.totals))
        for row in rows
    )
    return Table(
        "Cached share of the prompts' tokens",
        (Column("layout"), *(Column(name, How.COUNTED) for name in columns)),
        cells,
    )


def _cost(rows: Sequence[Row], floor: str) -> Table:
    cells = tuple(
        (
            row.layout,
            f"{row.totals[0].computed:,}",
            "not measured" if row.ttft_s is None else f"{1e3 * row.ttft_s:,.0f}",
            f"{1e3 * row.floor_s:,.1f}",
            *(f"{row.dollars_a_turn(totals):.5f}" for totals in row.priced),
        )
        for row in rows
    )
    columns = (
        Column("layout"),
        Column("computed, deeproot", How.COUNTED),
        Column("TTFT, ms", How.MEASURED),
        Column("TTFT floor, ms", How.FLOOR),
        *(Column(f"$ a turn, {totals.cache}", How.COUNTED) for totals in rows[0].priced),
    )
    return Table("What the calls cost", columns, cells, f"Floor: {floor}, mean over the calls.")


def _kept(rows: Sequence[Row]) -> Table:
    cells = tuple(
        (
            row.layout,
            _share(row.fidelity.rules),
            _share(row.fidelity.facts),
            _NONE if row.fidelity.c_r is None else f"{row.fidelity.c_r:.2f}",
            _share(row.fidelity.u_eff),
            f"{row.fidelity.stale:.2f}",
            f"{row.fidelity.unmarked:.2f}",
        )
        for row in rows
    )
    names = (
        "rules kept",
        "associative facts kept",
        "C_r",
        "U_eff",
        "stale spans a call",
        "of them unmarked",
    )
    return Table(
        "What the calls held",
        (Column("layout"), *(Column(name, How.COUNTED) for name in names)),
        cells,
        "Rules: lines of policy, constraints and the user's words. Associative facts, C_r and U_eff as in docs/checkpoints.md."
        " Stale: text of a file that has changed since.",
    )


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.1%}"


def _worth(rows: Sequence[Row]) -> Table:
    """Against the first row, which has everything. Sorted by what the absence costs under the first price table."""
    whole, *others = rows
    base = whole.priced[0]

    def more(row: Row) -> float:
        return row.dollars_a_turn(row.priced[0]) / whole.dollars_a_turn(base) - 1

    cells = tuple(
        (
            row.layout,
            f"{more(row):+.1%}",
            f"{row.staged / whole.staged - 1:+.1%}",
            f"{row.totals[0].computed / whole.totals[0].computed - 1:+.1%}",
            _points(row.fidelity.rules, whole.fidelity.rules),
            _points(row.fidelity.facts, whole.fidelity.facts),
            _points(row.fidelity.u_eff, whole.fidelity.u_eff),
        )
        for row in sorted(others, key=more, reverse=True)
    )
    names = (
        f"dollars, {base.cache}",
        "tokens staged",
        "tokens computed",
        "rules kept",
        "facts kept",
        "U_eff",
    )
    return Table(
        "What each part was worth: three zones without it",
        (Column("without"), *(Column(name, How.COUNTED) for name in names)),
        cells,
        "Shares of what three zones have with all parts; points of a hundred for what is kept. A part that costs tokens"
        " and keeps no fact may still help a model: that is not measured here.",
    )


def _points(value: float | None, base: float | None) -> str:
    return _NONE if value is None or base is None else f"{100 * (value - base):+.1f}"


def charts(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Cost against fidelity, and hits by turn."""
    priced = rows[0].priced
    made = []
    if priced and any(row.fidelity.facts is not None for row in rows):
        points = [
            Line(row.layout, ((1e3 * row.dollars_a_turn(row.priced[0]), 100 * row.fidelity.facts),))
            for row in rows
            if row.fidelity.facts is not None
        ]
        made.append(
            Chart(
                key="cost_and_facts",
                title="What a turn costs, and what it still holds",
                x=f"thousandths of a dollar a turn, {priced[0].cache}",
                y="% of associative facts kept",
                how=How.COUNTED,
                lines=tuple(points),
                log_x=True,
                joined=False,
            )
        )
    made.append(
        Chart(
            key="hits_by_turn",
            title="Cached share by turn, our tree",
            x="turn",
            y="% of the prompt",
            how=How.COUNTED,
            lines=tuple(Line(row.layout, tuple((float(t), 100 * h) for t, h in row.hits)) for row in rows),
        )
    )
    return tuple(made)
