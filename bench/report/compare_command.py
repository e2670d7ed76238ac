"""`deeproot bench compare A.json B.json`: what differs beyond noise."""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from deeproot.bench.report.environment import environment
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.result import Column, Result, Table, read_result
from deeproot.bench.report.verdicts import Comparison, Verdict, compare

DONE, WORSE, FAILED = 0, 1, 2
_IGNORED = {"date", "load before"}


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        check_output(args)
        a, b = read_result(args.a), read_result(args.b)
        found = compared(a, b)
        if not found:
            raise ValueError(
                f"{args.a} and {args.b} have no quantity in common; give two results of one command"
            )
    except (OSError, ValueError) as error:
        print(f"deeproot bench compare: {error}", file=sys.stderr)
        return FAILED
    show(args, _result(args, a, b, found))
    worse = any(one.verdict is Verdict.WORSE for one in found)
    return WORSE if worse and args.fail_if_worse else DONE


def compared(a: Result, b: Result) -> list[Comparison]:
    """Every quantity that both have, in A's order."""
    others = {(metric.name, metric.unit, metric.how): metric for metric in b.metrics}
    return [
        compare(metric, others[key])
        for metric in a.metrics
        if (key := (metric.name, metric.unit, metric.how)) in others
    ]


def _result(args: argparse.Namespace, a: Result, b: Result, found: Sequence[Comparison]) -> Result:
    counts = Counter(one.verdict for one in found)
    measured = sum(one.p is not None for one in found)
    names = {metric.name for metric in a.metrics} ^ {metric.name for metric in b.metrics}
    notes = [
        "B beside A: " + ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items()) + ".",
        "A measured difference is called better or worse if the medians are 2% apart and no more than one in twenty ways to"
        " deal the samples out would part their ranks as much."
        + (
            f" Of {measured} such tests about {measured / 20:.1f} come out so by chance."
            if measured >= 10
            else ""
        ),
        "Two runs may also differ because the machine did: measure both in one run, in turns, where it matters.",
    ]
    if names:
        notes.append(f"{len(names)} quantities are in one of the two only.")
    return Result(
        command="bench compare",
        title=f"{args.b.name} beside {args.a.name}: {b.title}",
        environment=environment(()),
        settings={"a": args.a.name, "b": args.b.name},
        tables=(_verdicts(found), *_differences(a, b)),
        notes=tuple(notes),
    )


def _verdicts(found: Sequence[Comparison]) -> Table:
    columns = ("quantity", "what it is", "A", "B", "B / A", "95% of B / A", "p", "verdict")
    rows = tuple(
        (
            f"{one.name}, {one.unit}",
            one.how.value,
            f"{one.a:,.5g}",
            f"{one.b:,.5g}",
            "-" if one.ratio is None else f"{one.ratio:.3f}",
            "-" if one.interval is None else f"{one.interval[0]:.3f} to {one.interval[1]:.3f}",
            "-" if one.p is None else f"{one.p:.3f}",
            one.verdict.value,
        )
        for one in found
    )
    return Table("Quantities", tuple(Column(name) for name in columns), rows)


def _differences(a: Result, b: Result) -> list[Table]:
    """What was not the same when the two were made, as far as they say."""
    rows = []
    for one, other in ((a.environment, b.environment), (a.settings, b.settings)):
        rows += [
            (name, _shown(one, name), _shown(other, name))
            for name in sorted(one.keys() | other.keys())
            if name not in _IGNORED and one.get(name) != other.get(name)
        ]
    columns = (Column("setting"), Column("A"), Column("B"))
    return [Table("Not the same in both runs", columns, tuple(rows))] if rows else []


def _shown(values: dict[str, Any], name: str) -> str:
    return str(values[name]) if name in values else "not said"
