"""`deeproot bench layouts`: what each way to lay out a context costs in each cache; the worked examples."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from deeproot.bench.cachesim import injection
from deeproot.bench.cachesim.examples import Example, compute_examples
from deeproot.bench.cachesim.fidelity import Judge
from deeproot.bench.cachesim.layout_tables import Row, charts, metrics, tables
from deeproot.bench.cachesim.layouts import SHARE, Layout, ablations, layouts
from deeproot.bench.cachesim.logs import airline_logs, made_logs, read_log
from deeproot.bench.cachesim.prices import PRICES, PriceTable, read_prices
from deeproot.bench.cachesim.replaying import replay_everywhere
from deeproot.bench.cachesim.staging import stage
from deeproot.bench.cachesim.turns import floor_of_calls, hits_by_turn, measured_ttft
from deeproot.bench.cachesim.worked_runs import Run, worked_run
from deeproot.bench.prefill.rig import Rig
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.progress import Advance, progress
from deeproot.bench.report.result import Result
from deeproot.engine.prefill_floor import DenseModel
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.event_log import EventLogError
from deeproot.runtime.context.measure.replay import PLAIN_TEMPLATE, RoughTokenizer
from deeproot.runtime.context.template import ChatTemplate, read_template
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.options import EngineOptions

DONE, DISAGREES, FAILED = 0, 1, 2
BETWEEN_RUNS_S = 67.0
_QUICK_RUNS, _QUICK_TURNS = 2, 12


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        if args.example is not None:
            return _examples(args)
        check_output(args)
        result = _result(args)
    except (OSError, ValueError, EventLogError, TemplateError) as error:
        print(f"deeproot bench layouts: {error}", file=sys.stderr)
        return FAILED
    show(args, result)
    return DONE


def _result(args: argparse.Namespace) -> Result:
    if args.quick:
        args.sessions, args.turns = min(args.sessions, _QUICK_RUNS), min(args.turns, _QUICK_TURNS)
    prices = read_prices(args.prices or PRICES)
    rig, tokens, template = _language(args)
    runs = runs_of(args)
    chosen = ablations() if args.ablate else layouts()
    chosen = [one for one in chosen if not one.worked_only or any(run.is_worked for run in runs)]
    judge = Judge(runs, tokens, template)
    with progress("layouts", len(chosen)) as advance:
        rows = [_row(one, runs, tokens, template, args, prices, judge, rig, advance) for one in chosen]
    device = f"{args.floor_parameters:.3g} parameters on one {args.floor_device}"
    shown = tables(rows, ablation=args.ablate, floor=device)
    if args.ablate:
        tried = injection.try_all()
        answers = None if args.url is None else injection.ask_model(args.url, args.api_key, tried)
        shown += (injection.table(tried, answers),)
    return Result(
        command="bench layouts --ablate" if args.ablate else "bench layouts",
        title=f"{'Three zones, part by part' if args.ablate else 'Layouts'}: {runs_name(args)}",
        environment=environment(()),
        settings=settings_of(args),
        metrics=metrics(rows),
        tables=shown,
        charts=charts(rows),
        notes=(
            f"Tokens by {args.tokenizer or ('the model of --model' if rig else 'four characters each')}; caches without"
            f" limit; budget: {args.budget or f'the fixed part and {SHARE:.0%} of the rest of each run'}.",
            "TTFT on the engine: "
            + ("mean over the calls that fit its window." if rig else "not measured (--model measures it)."),
            "Tone, and how well a model does with each layout, need a model to judge: not measured.",
        ),
    )


def _row(
    layout: Layout,
    runs: Sequence[Run],
    tokens: SegmentTokenizer,
    template: ChatTemplate,
    args: argparse.Namespace,
    prices: Sequence[PriceTable],
    judge: Judge,
    rig: Rig | None,
    advance: Advance,
) -> Row:
    staged = stage(layout, runs, tokens, template, args.budget)
    if not staged.calls:
        raise ValueError(f"no call of any run fits under {layout.name!r}; raise --budget")
    model = DenseModel(int(args.floor_parameters), args.floor_layers, args.floor_d_model)
    made = Row(
        layout=layout.name,
        calls=len(staged.calls),
        over=staged.over,
        staged=sum(int(call.prompt.size) for call in staged.calls),
        totals=tuple(replay_everywhere(staged.calls, None, prices)),
        fidelity=judge.judge(staged.seen),
        floor_s=floor_of_calls(staged.calls, model, args.floor_device),
        ttft_s=None if rig is None else measured_ttft(staged.calls, rig),
        hits=tuple(hits_by_turn(staged.calls)),
    )
    advance(layout.name)
    return made


def _language(args: argparse.Namespace) -> tuple[Rig | None, SegmentTokenizer, ChatTemplate]:
    """An engine if one is asked for, tokens and template. Raises ValueError or OSError."""
    given = args.chat_template
    template = ChatTemplate(PLAIN_TEMPLATE) if given is None else read_template(given)
    if args.model is not None:
        if args.tokenizer is not None:
            raise ValueError("--tokenizer: --model has its own; give one of the two")
        engine = load_engine(EngineOptions(model=args.model))
        return Rig(engine), SegmentTokenizer(engine.speech.assets.tokenizer), template
    tokenizer = RoughTokenizer() if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    return None, SegmentTokenizer(tokenizer), template


def runs_of(args: argparse.Namespace) -> list[Run]:
    """The runs that the flags name. Raises OSError or ValueError."""
    if args.file:
        return [Run(read_log(path)) for path in args.file]
    if args.runs == "airline":
        return [Run(log) for log in airline_logs(args.sessions)]
    if args.runs == "worked":
        return [
            worked_run(args.seed + i, args.turns, root_seed=args.seed, start_s=i * BETWEEN_RUNS_S)
            for i in range(args.sessions)
        ]
    return [Run(log) for log in made_logs(args.sessions, args.seed, args.turns)]


def runs_name(args: argparse.Namespace) -> str:
    """How results call the runs."""
    if args.file:
        return ", ".join(path.name for path in args.file)
    if args.runs == "airline":
        return f"airline, first {args.sessions} runs"
    kind = "made runs with files and skills" if args.runs == "worked" else "made runs"
    return f"{args.sessions} {kind} of {args.turns} turns, seed {args.seed}"


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
