"""`deeproot bench layouts`: what each way to lay out a context costs in each cache; the worked examples."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeproot import __version__
from deeproot.bench.cachesim.examples import Example, compute_examples
from deeproot.bench.cachesim.layouts import SHARE, layouts, stage
from deeproot.bench.cachesim.logs import airline_logs, made_logs, read_log
from deeproot.bench.cachesim.prices import PRICES, PriceTable, read_prices
from deeproot.bench.cachesim.replaying import Totals, replay_everywhere
from deeproot.bench.report.text import text_table
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, RoughTokenizer
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter

DONE, DISAGREES, FAILED = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Row:
    """One layout. `totals`: by cache; `over`: calls whose working set could not be made to fit the budget."""

    layout: str
    calls: int
    over: int
    staged: int
    totals: tuple[Totals, ...]


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        if args.example is not None:
            return _examples(args)
        rows = _rows(args, read_prices(args.prices or PRICES))
    except (OSError, ValueError, EventLogError, TemplateError) as error:
        print(f"deeproot bench layouts: {error}", file=sys.stderr)
        return FAILED
    print(json.dumps(_document(args, rows), indent=1) if args.json else _table(args, rows))
    return DONE


def _rows(args: argparse.Namespace, tables: Sequence[PriceTable]) -> list[Row]:
    tokenizer = RoughTokenizer() if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    source = PLAIN_TEMPLATE
    if args.chat_template is not None:
        source = Path(args.chat_template).read_text(encoding="utf-8")
    tokens, template = SegmentTokenizer(tokenizer), ChatTemplate(source)
    runs = _runs(args)
    rows = []
    for layout in layouts():
        staged = stage(layout, runs, tokens, template, args.budget)
        if not staged.calls:
            raise ValueError(f"no call of any run fits under {layout.name!r}; raise --budget")
        size = sum(int(call.prompt.size) for call in staged.calls)
        totals = replay_everywhere(staged.calls, None, tables)
        rows.append(Row(layout.name, len(staged.calls), staged.over, size, tuple(totals)))
    return rows


def _runs(args: argparse.Namespace) -> list[EventLog]:
    if args.file:
        return [read_log(path) for path in args.file]
    if args.runs == "airline":
        return airline_logs(args.sessions)
    return made_logs(args.sessions, args.seed, args.turns)


def runs_name(args: argparse.Namespace) -> str:
    """How results call the runs."""
    if args.file:
        return ", ".join(path.name for path in args.file)
    if args.runs == "airline":
        return f"airline, first {args.sessions} runs"
    return f"{args.sessions} made runs of {args.turns} turns, seed {args.seed}"


def _document(args: argparse.Namespace, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "deeproot": __version__,
        "runs": runs_name(args),
        "tokenizer": args.tokenizer or "4 characters a token",
        "budget": args.budget or f"the fixed part and {SHARE:.0%} of the rest of each run",
        "how": "counted exactly, in tokens; caches without limit; nothing was timed",
        "layouts": [
            {
                **{name: getattr(row, name) for name in ("layout", "calls", "over", "staged")},
                "caches": [{**asdict(t), "computed": t.computed, "hit_rate": t.hit_rate} for t in row.totals],
            }
            for row in rows
        ],
    }


def _table(args: argparse.Namespace, rows: Sequence[Row]) -> str:
    names = [totals.cache for totals in rows[0].totals]
    hits = [
        (row.layout, f"{row.staged:,}", str(row.over or "-"), *(f"{t.hit_rate:.1%}" for t in row.totals))
        for row in rows
    ]
    paid = [
        (
            row.layout,
            f"{row.totals[0].computed:,}",
            *(f"{t.dollars / row.calls:.5f}" for t in row.totals if t.dollars is not None),
        )
        for row in rows
    ]
    priced = [totals.cache for totals in rows[0].totals if totals.dollars is not None]
    return "\n".join(
        [
            f"{runs_name(args)}; counted, not measured",
            "",
            "Cached share of the prompts' tokens:",
            "",
            text_table(("layout", "tokens staged", "over budget", *names), hits),
            "",
            "Tokens that our engine computes, and dollars a turn (input and output):",
            "",
            text_table(("layout", "computed", *priced), paid),
        ]
    )


def _examples(args: argparse.Namespace) -> int:
    found = compute_examples(args.example)
    if args.json:
        print(json.dumps([{**asdict(e), "agrees": e.agrees} for e in found], indent=1))
    else:
        print("\n\n".join(_spelled(example) for example in found))
    return DONE if all(example.agrees for example in found) else DISAGREES


def _spelled(example: Example) -> str:
    lines = [f"{example.name}: {example.what}"]
    if example.computed is None:
        return "\n".join([*lines, f"  not computed: {example.why}"])
    lines += [f"  {name}: {value}" for name, value in example.computed.items()]
    lines.append("  as expected" if example.agrees else f"  NOT as expected: {dict(example.expected)}")
    if example.source_says:
        lines.append(f"  the source says: {example.source_says}")
    return "\n".join(lines)
