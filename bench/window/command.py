"""`deeproot bench window`: how much of a window is usable, for a model by API or for a run's evidence."""

import argparse
import sys

from deeproot.bench.cachesim.layouts_command import runs_name, runs_of
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Result
from deeproot.bench.window import asking, evidence
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.event_log import EventLogError
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, RoughTokenizer
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter

DONE, FAILED = 0, 2
_QUICK_RUNS, _QUICK_TURNS, _QUICK_BUDGETS = 2, 20, 3


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        check_output(args)
        result = _of_model(args) if args.url is not None else _of_runs(args)
    except (OSError, ValueError, EventLogError, TemplateError) as error:
        print(f"deeproot bench window: {error}", file=sys.stderr)
        return FAILED
    show(args, result)
    return DONE


def _of_model(args: argparse.Namespace) -> Result:
    before = environment(())
    asked = asking.ask_model(args)
    star = asking.usable(asked, args.threshold)
    said = f"M* is about {star:,} tokens" if star is not None else "M* is below the shortest prompt asked"
    return Result(
        command="bench window",
        title=f"Usable window by completion: {said} at {args.threshold:.0%}",
        environment=before,
        settings=settings_of(args),
        metrics=asking.metrics(asked),
        tables=(asking.table(asked), asking.depth_table(asked)),
        charts=(asking.chart(asked),),
        notes=(
            f"M*: the longest prompt at which, and at every shorter one, {args.threshold:.0%} of all tasks without a status"
            " bar are answered right, at temperature 0. A small model may fail tasks at any length.",
        ),
    )


def _of_runs(args: argparse.Namespace) -> Result:
    budgets = sorted(set(args.budgets))
    if args.quick:
        args.sessions, args.turns = min(args.sessions, _QUICK_RUNS), min(args.turns, _QUICK_TURNS)
        budgets = budgets[-_QUICK_BUDGETS:]
    tokenizer = RoughTokenizer() if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    runs = runs_of(args)
    with progress("window", len(budgets) * len(evidence.LAYOUTS)) as advance:
        found = evidence.measure(
            runs, budgets, SegmentTokenizer(tokenizer), ChatTemplate(PLAIN_TEMPLATE), advance
        )
    return Result(
        command="bench window",
        title=f"Evidence availability by budget: {runs_name(args)}",
        environment=environment(()),
        settings=settings_of(args),
        metrics=evidence.metrics(found),
        tables=(evidence.table(found, args.threshold),),
        charts=(evidence.chart(found),),
        notes=(
            "Evidence availability, not task completion: a scripted reader looks whether the facts that each action took from"
            " earlier observations stand in its prompt. With --url a model is asked.",
        ),
    )
