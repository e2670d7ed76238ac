"""`deeproot bench replay`: what caches would have had of a workload, or, with `--url`, what servers make of it."""

import argparse
import sys
from collections.abc import Sequence

from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.prices import PRICES, read_prices
from deeproot.bench.cachesim.replaying import Totals, replay_everywhere, totals_metrics
from deeproot.bench.cachesim.workloads import named_workload, read_workload
from deeproot.bench.live.command import replayed
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.result import Column, How, Result, Table
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.template import read_template
from deeproot.runtime.context.tokenizer import TokenizersAdapter

DONE, FAILED = 0, 2
_QUICK_SESSIONS = 3


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        check_output(args)
        if args.quick:
            args.sessions = min(args.sessions, _QUICK_SESSIONS)
        renderer = renderer_of(args)
        live = args.url is not None or args.compare
        result = replayed(args, renderer, workload_name(args)) if live else simulated(args, renderer)
    except (OSError, ValueError, TemplateError) as error:
        print(f"deeproot bench replay: {error}", file=sys.stderr)
        return FAILED
    show(args, result)
    return DONE


def simulated(args: argparse.Namespace, renderer: Renderer) -> Result:
    """The workload through every cache model."""
    if args.file is None:
        calls = named_workload(args.workload, renderer, args.seed, args.sessions)
    else:
        calls = read_workload(args.file, args.form, renderer)
    tables = read_prices(args.prices or PRICES)
    found = replay_everywhere(calls, args.cache_tokens, tables)
    size = "without limit" if args.cache_tokens is None else f"of {args.cache_tokens:,} tokens"
    return Result(
        command="bench replay",
        title=f"{workload_name(args)}: {found[0].calls} calls",
        environment=environment(()),
        settings=settings_of(args),
        metrics=tuple(metric for totals in found for metric in totals_metrics(totals, totals.cache)),
        tables=(_table(found, f"Caches; engines' {size}"),),
        notes=(
            f"Tokens by {args.tokenizer or 'four characters each'}, one call after another. Nothing was timed.",
        ),
    )


def renderer_of(args: argparse.Namespace) -> Renderer:
    """Raises OSError, ValueError or `TemplateError` for files that are not what the flags say."""
    tokenizer = None if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    template = None
    if args.chat_template is not None:
        template = read_template(args.chat_template)
    return Renderer(tokenizer, template)


def workload_name(args: argparse.Namespace) -> str:
    """How results call what was replayed."""
    if args.file is not None:
        return f"{args.file.name} ({args.form})"
    seed = f", seed {args.seed}" if args.workload == "agents" else ""
    return f"{args.workload}, first {args.sessions}{seed}"


def _table(found: Sequence[Totals], title: str) -> Table:
    rows = tuple(
        (
            t.cache,
            f"{t.prompt:,}",
            f"{t.cached:,}",
            f"{t.hit_rate:.1%}",
            f"{t.computed:,}",
            "-" if t.dollars is None else f"{t.dollars:.4f}",
            f"{t.refused}" if t.refused else "-",
        )
        for t in found
    )
    heads = ("prompt tokens", "cached", "hit rate", "computed", "dollars", "refused")
    return Table(title, (Column("cache"), *(Column(head, How.COUNTED) for head in heads)), rows)
