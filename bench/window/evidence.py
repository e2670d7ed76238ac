"""Evidence availability by budget: without a model, whether what later actions need is staged, and current.

This is not task completion: a scripted reader looks for the facts that each recorded action took from observations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.bench.cachesim.fidelity import Fidelity, Judge
from deeproot.bench.cachesim.layouts import Layout, layouts
from deeproot.bench.cachesim.staging import stage
from deeproot.bench.cachesim.worked_runs import Run
from deeproot.bench.report.progress import Advance
from deeproot.bench.report.result import Chart, Column, How, Line, Metric, Table
from deeproot.bench.window.usable import smallest_sufficient
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer

LAYOUTS = ("sliding window", "three zones", "three zones + summary", "three zones + checkpoint")


@dataclass(frozen=True, slots=True)
class Available:
    """One layout at one budget. `calls`: of those, `over` could not be made to fit, and have nothing of what they need."""

    layout: str
    budget: int
    calls: int
    over: int
    fidelity: Fidelity
    joins: int
    """Actions of all runs that join two distant observations."""

    @property
    def facts(self) -> float | None:
        return self.fidelity.joins.part / self.joins if self.joins else None

    @property
    def rules(self) -> float:
        return (self.fidelity.rules or 0.0) * (self.calls - self.over) / self.calls


def measure(
    runs: Sequence[Run],
    budgets: Sequence[int],
    tokens: SegmentTokenizer,
    template: ChatTemplate,
    advance: Advance,
) -> list[Available]:
    """Every layout at every budget. Raises ValueError if the runs hold no call."""
    judge = Judge(runs, tokens, template)
    every = {layout.name: layout for layout in layouts()}
    whole = judge.judge(stage(every["append-only log"], runs, tokens, template, max(budgets)).seen)
    made = []
    for name in LAYOUTS:
        for budget in budgets:
            made.append(_at(every[name], budget, runs, tokens, template, judge, whole.joins.whole))
            advance(f"{name}, {budget:,}")
    return made


def _at(
    layout: Layout,
    budget: int,
    runs: Sequence[Run],
    tokens: SegmentTokenizer,
    template: ChatTemplate,
    judge: Judge,
    joins: int,
) -> Available:
    staged = stage(layout, runs, tokens, template, budget)
    calls = len(staged.calls) + staged.over
    if not calls:
        raise ValueError("the runs hold no call of a model")
    return Available(layout.name, budget, calls, staged.over, judge.judge(staged.seen), joins)


def usable(found: Sequence[Available], layout: str, threshold: float) -> int | None:
    """M* of a layout: from which budget on that share of the evidence is there; None if it never is."""
    shares = {
        one.budget: one.rules if one.facts is None else one.facts for one in found if one.layout == layout
    }
    return smallest_sufficient(shares, threshold)


def metrics(found: Sequence[Available]) -> tuple[Metric, ...]:
    """Facts and rules at each budget."""
    made = []
    for one in found:
        for name, share in (("facts", one.facts), ("rules", one.rules)):
            if share is not None:
                made.append(
                    Metric(
                        name=f"{name} available, {one.layout}, {one.budget} tokens",
                        unit="",
                        how=How.COUNTED,
                        samples=(share,),
                        higher_is_better=True,
                    )
                )
    return tuple(made)


def table(found: Sequence[Available], threshold: float) -> Table:
    """One row a layout: facts and rules by budget, and M*."""
    budgets = sorted({one.budget for one in found})
    rows = []
    for layout in LAYOUTS:
        of_layout = {one.budget: one for one in found if one.layout == layout}
        star = usable(found, layout, threshold)
        rows.append(
            (layout, *(_cell(of_layout[b]) for b in budgets), "beyond these" if star is None else f"{star:,}")
        )
    columns = (
        Column("layout"),
        *(Column(f"{budget:,} tokens", How.COUNTED) for budget in budgets),
        Column(f"M* ({threshold:.0%})", How.COUNTED),
    )
    note = (
        "Associative facts, and rules (lines of policy and the user's words), that stood in the prompts; a call that cannot be"
        " made to fit has none. M*: from which budget on that share of the facts is there; of the rules, where no action"
        " joins facts."
    )
    return Table("Evidence availability by budget: facts / rules", columns, tuple(rows), note)


def _cell(one: Available) -> str:
    facts = "-" if one.facts is None else f"{one.facts:.0%}"
    over = f", {one.over} over" if one.over else ""
    return f"{facts} / {one.rules:.0%}{over}"


def chart(found: Sequence[Available]) -> Chart:
    """Evidence by budget, a line a layout."""
    lines = [
        Line(
            layout,
            tuple(
                (float(one.budget), 100 * (one.rules if one.facts is None else one.facts))
                for one in sorted(found, key=lambda one: one.budget)
                if one.layout == layout
            ),
        )
        for layout in LAYOUTS
    ]
    return Chart(
        key="evidence_by_budget",
        title="Evidence availability by budget",
        x="tokens of one call",
        y="% of associative facts (or rules) in the prompt",
        how=How.COUNTED,
        lines=tuple(lines),
        log_x=True,
    )
