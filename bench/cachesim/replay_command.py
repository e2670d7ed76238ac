"""`deeproot bench replay`: what caches would have had of a workload. No model and no server is run."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from deeproot import __version__
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.prices import PRICES, read_prices
from deeproot.bench.cachesim.replaying import Totals, replay_everywhere
from deeproot.bench.cachesim.tables import text_table
from deeproot.bench.cachesim.workloads import named_workload, read_workload
from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.tokenizer import TokenizersAdapter

DONE, FAILED = 0, 2


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say (`runtime/bench_flags.py` declares them); returns the exit code."""
    try:
        renderer = renderer_of(args)
        if args.file is None:
            calls = named_workload(args.workload, renderer, args.seed, args.sessions)
        else:
            calls = read_workload(args.file, args.form, renderer)
        tables = read_prices(args.prices or PRICES)
    except (OSError, ValueError, TemplateError) as error:
        print(f"deeproot bench replay: {error}", file=sys.stderr)
        return FAILED
    found = replay_everywhere(calls, args.cache_tokens, tables)
    if args.json:
        print(json.dumps(_document(args, found), indent=1))
    else:
        print(_table(args, found))
    return DONE


def renderer_of(args: argparse.Namespace) -> Renderer:
    """Raises OSError, ValueError or `TemplateError` for files that are not what the flags say."""
    tokenizer = None if args.tokenizer is None else TokenizersAdapter.from_file(args.tokenizer)
    template = None
    if args.chat_template is not None:
        template = ChatTemplate(Path(args.chat_template).read_text(encoding="utf-8"))
    return Renderer(tokenizer, template)


def workload_name(args: argparse.Namespace) -> str:
    """How results call what was replayed."""
    if args.file is not None:
        return f"{args.file} ({args.form})"
    seed = f", seed {args.seed}" if args.workload == "agents" else ""
    return f"{args.workload}, first {args.sessions}{seed}"


def _document(args: argparse.Namespace, found: list[Totals]) -> dict[str, object]:
    return {
        "deeproot": __version__,
        "workload": workload_name(args),
        "tokenizer": args.tokenizer or "4 characters a token",
        "cache_tokens": args.cache_tokens,
        "how": "counted exactly, in tokens, one call after another; nothing was timed",
        "caches": [{**asdict(t), "computed": t.computed, "hit_rate": t.hit_rate} for t in found],
    }


def _table(args: argparse.Namespace, found: list[Totals]) -> str:
    size = "without limit" if args.cache_tokens is None else f"of {args.cache_tokens:,} tokens"
    rows = [
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
    ]
    heads = ("cache", "prompt tokens", "cached", "hit rate", "computed", "dollars", "refused")
    lines = [
        f"{workload_name(args)}: {found[0].calls} calls; engines' caches {size}; counted, not measured",
        "",
        text_table(heads, rows),
    ]
    return "\n".join(lines)
