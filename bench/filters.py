"""What filters, extraction and skeletons save on a session of real commands, and how fast they are.

`python -m deeproot.bench.filters cascade [--tokenizer tokenizer.json|model.gguf]`: tokens of the recorded session
after each stage, beside the figures of the chapter that the design follows.

`python -m deeproot.bench.filters speed [--megabytes 20]`: MB/s of each filter, of the pipeline with its retention
check, and of extraction, on text without cursor control and on terminal streams. Seconds are of processor time, so
that a busy machine does not change them; everything runs in one thread.

`python -m deeproot.bench.filters skeletons LANGUAGE DIR...`: every source file under the folders that the language's
extensions match: how many parse, how many stop parsing when folded (must be none), bytes before and after, MB/s.

Each prints one JSON object. Without a tokenizer, tokens are counted as bytes / 4 and `tokenizer` says so.
"""

import argparse
import gzip
import importlib
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from deeproot.runtime.context.extract.extract import extract
from deeproot.runtime.context.filters.actions import ActionReader
from deeproot.runtime.context.filters.base import Filter, FilterContext
from deeproot.runtime.context.filters.observation import Observation, ObservationLog
from deeproot.runtime.context.filters.pipeline import Pipeline, default_filters, diff_filters
from deeproot.runtime.context.filters.terminal import TerminalFilter
from deeproot.runtime.context.retention import facts
from deeproot.runtime.context.skeleton.fold import skeleton, skeleton_of_file
from deeproot.runtime.context.skeleton.languages import parser_of, spec_of

FIXTURES = Path(__file__).parents[1] / "tests" / "runtime" / "context" / "fixtures"
SOURCE_SAYS = {"raw": 128_000, "pruned": 24_000, "skeletons": 6_000, "ledger": 1_200}
Count = Callable[[str], int]
Events = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the three measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--session", type=Path, default=FIXTURES / "session.jsonl.gz")
    commands = parser.add_subparsers(dest="command", required=True)
    cascade = commands.add_parser("cascade")
    cascade.add_argument("--tokenizer", type=Path)
    speed = commands.add_parser("speed")
    speed.add_argument("--megabytes", type=float, default=20)
    sweep = commands.add_parser("skeletons")
    sweep.add_argument("language")
    sweep.add_argument("folders", nargs="+", type=Path)
    sweep.add_argument("--limit", type=int, default=0, help="stop after so many files")
    args = parser.parse_args(argv)
    if args.command == "skeletons":
        result = measure_skeletons(args.language, args.folders, args.limit)
    elif args.command == "speed":
        result = measure_speed(read_session(args.session), args.megabytes)
    else:
        count, name = counter(args.tokenizer)
        result = {"tokenizer": name, **measure_cascade(read_session(args.session), count)}
    print(json.dumps(result, indent=1, ensure_ascii=False))
    return 0


def read_session(path: Path) -> Events:
    """The recorded events: seq, time, command, exit_code and output."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def counter(path: Path | None) -> tuple[Count, str]:
    """A function from text to its number of tokens, and what it counts with."""
    if path is None:
        return (lambda text: -(-len(text.encode("utf-8", "replace")) // 4)), "bytes / 4"
    if path.suffix == ".gguf":
        auto = importlib.import_module("transformers").AutoTokenizer
        fast = auto.from_pretrained(str(path.parent), gguf_file=path.name)
        return (lambda text: len(fast.encode(text, add_special_tokens=False))), path.name
    own = tokenizers.Tokenizer.from_file(str(path))
    return (lambda text: len(own.encode(text, add_special_tokens=False).ids)), path.name


def observations(events: Events) -> ObservationLog:
    """The session as the filters see it."""
    reader = ActionReader("/repo")
    log = ObservationLog()
    for e in events:
        action = reader.command(e["command"], e["output"], None if e["exit_code"] else 0)
        log.append(Observation(e["seq"], action, e["output"], e["time"]))
    return log


def measure_cascade(events: Events, count: Count) -> dict[str, Any]:
    """Tokens of all outputs together after each stage, with pointers for stale views and with diffs for later ones."""
    log = observations(events)
    raw = sum(count(e["output"]) for e in events)
    return {
        "outputs": len(events),
        "raw": raw,
        "stale_views_as_pointers": _cascade(log, default_filters(), count, raw),
        "later_views_as_diffs": _cascade(log, diff_filters(), count, raw),
        "source_says": SOURCE_SAYS,
    }


def _cascade(log: ObservationLog, filters: Sequence[Filter], count: Count, raw: int) -> dict[str, Any]:
    pipeline = Pipeline(filters, count_tokens=count)
    results = [pipeline.run(log[i].text, FilterContext(log, i)) for i in range(len(log))]
    stages: dict[str, int] = {}
    left = raw
    for k, stage in enumerate(filters):
        done = [r.stages[k] for r in results if len(r.stages) > k]
        left -= sum(s.tokens_in - s.tokens_out for s in done)
        stages[stage.name] = left
    refused = [(s.stage, log[i].seq) for i, r in enumerate(results) for s in r.stages if s.refused]
    texts = [r.text for r in results]
    texts = [t if log[i].action.shows else extract(t).text for i, t in enumerate(texts)]
    extracted = sum(map(count, texts))
    texts = [_folded(t, log[i].action.shows) for i, t in enumerate(texts)]
    skeletons = sum(map(count, texts))
    return {
        "after_each_filter": stages,
        "refused": refused,
        "filtered": left,
        "extracted": extracted,
        "skeletons": skeletons,
        "ratios": {
            "filters": round(raw / left, 2),
            "extraction": round(left / extracted, 2),
            "skeletons": round(extracted / skeletons, 2),
            "all": round(raw / skeletons, 2),
        },
    }


def _folded(text: str, shows: str | None) -> str:
    """A view of a file as its skeleton; `cat -n` puts numbers before the lines, which no grammar reads."""
    if shows is None or text.startswith("["):
        return text
    lines = text.split("\n")
    if all(re.match(r"\s*\d+\t", line) for line in lines if line):
        text = "\n".join(re.sub(r"^\s*\d+\t", "", line) for line in lines)
    folded = skeleton_of_file(shows, text)
    return text if folded is None else folded.text


def measure_speed(events: Events, megabytes: float) -> dict[str, Any]:
    """MB/s over the session's outputs, one by one as an agent gets them, repeated to the wanted size."""
    raw = [e["output"] for e in events]
    terminal = TerminalFilter()
    plain = [terminal.apply(t, FilterContext()).text for t in raw]
    streams = [p.read_bytes().decode() for p in sorted((FIXTURES / "tool_outputs").glob("*.txt"))]
    streams = [t for t in streams if "\x1b" in t or "\r" in t]
    kinds = {"without cursor control": plain, "session as recorded": raw, "terminal streams": streams}
    stages: dict[str, Callable[[str], object]] = {f.name: _applied(f) for f in default_filters()}
    pipeline = Pipeline(count_tokens=lambda text: 0)
    stages["pipeline with check"] = pipeline.run
    stages["retention facts alone"] = facts
    stages["extraction"] = extract
    return {
        kind: {name: round(_rate(run, texts, megabytes), 1) for name, run in stages.items()}
        for kind, texts in kinds.items()
    }


def _applied(stage: Filter) -> Callable[[str], object]:
    """The stage on a text of a log, so that the stages across observations have something to look up."""
    logs: dict[str, FilterContext] = {}

    def run(text: str) -> object:
        if text not in logs:
            logs[text] = FilterContext(observations([_event(0, "x"), _event(1, text)]), 1)
        return stage.apply(text, logs[text])

    return run


def _event(seq: int, output: str) -> dict[str, Any]:
    return {"seq": seq, "command": "cat a", "output": output, "exit_code": 0, "time": float(seq)}


def _rate(run: Callable[[str], object], texts: Sequence[str], megabytes: float) -> float:
    sizes = sum(len(t.encode("utf-8", "replace")) for t in texts) / 1e6
    for text in texts:  # warm: compiled patterns, width tables
        run(text)
    done, start = 0.0, time.process_time()
    while done < megabytes and time.process_time() - start < 10:
        for text in texts:
            run(text)
        done += sizes
    return done / (time.process_time() - start)


def measure_skeletons(language: str, folders: Sequence[Path], limit: int) -> dict[str, Any]:
    """Fold every file of a language under some folders."""
    extensions = spec_of(language).extensions
    files = sorted(p for f in folders for p in f.rglob("*") if p.suffix in extensions and p.is_file())
    counts = {"files": 0, "source_errors": 0, "new_errors": 0, "bytes": 0, "bytes_folded": 0}
    bad: list[str] = []
    seconds = 0.0
    for path in files[: limit or None]:
        source = path.read_text("utf-8", errors="replace")
        start = time.process_time()
        result = skeleton(source, language)
        seconds += time.process_time() - start
        counts["files"] += 1
        counts["bytes"] += len(source.encode())
        counts["bytes_folded"] += len(result.text.encode())
        counts["source_errors"] += not result.source_parses
        if result.source_parses and parser_of(language).parse(result.text.encode()).root_node.has_error:
            counts["new_errors"] += 1
            bad.append(str(path))
    return {
        "language": language,
        **counts,
        "mb_per_s": round(counts["bytes"] / 1e6 / max(seconds, 1e-9), 2),
        "bad": bad,
    }


if __name__ == "__main__":
    sys.exit(main())
