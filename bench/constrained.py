"""Do a real model's constrained outputs validate? On the questions and functions of BFCL.

    python -m deeproot.bench.constrained --model model.gguf [--every 1] [--max-tokens 1024] [--parallel 16] [--out FILE]

Each question is asked with its functions as tools and `tool_choice: required`, so that also a model that has never
learnt to call tools must; with `parallel_tool_calls: false` where the set expects one call. Every output that ends in
`tool_calls` is checked, call by call: the function is one of those that were given, the arguments validate against its
schema. One that is cut by its length is counted apart. One JSON object is printed; the exit status is 1 if an output did
not validate. With `--out` each outcome is a line of that file, and a run that was broken off goes on where it ended.
"""

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import jsonschema
import msgspec

from deeproot.bench.bfcl import Entry, read_entries
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.sampling_options import SamplingOptions


class Outcome(msgspec.Struct, frozen=True):
    """What became of one question."""

    id: str
    group: str
    finish_reason: str
    num_calls: int
    output_tokens: int
    faults: tuple[str, ...]
    """Of an output that has ended: what does not validate."""
    error: str | None


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, check, and print the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--load-format", default="auto")
    parser.add_argument("--every", type=int, default=1, help="take one entry of so many")
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--parallel", type=int, default=16, help="questions at a time")
    parser.add_argument("--out", type=Path, help="a line for each outcome; a run goes on where it ended")
    args = parser.parse_args(argv)
    sampling = SamplingOptions(max_tokens=args.max_tokens, temperature=args.temperature, seed=0)
    with Log(args.out) as log:
        asked = {outcome.id for outcome in log.outcomes}
        entries = [entry for entry in read_entries()[:: args.every] if entry.id not in asked]
        options = {"load_format": args.load_format, "max_num_seqs": args.parallel}
        started = time.perf_counter()
        with LLM(args.model, **options) as llm, ThreadPoolExecutor(args.parallel) as pool:
            for _ in pool.map(lambda entry: log.add(ask(llm, entry, sampling)), entries):
                pass
        settings = {"model": args.model, "max_tokens": args.max_tokens, "temperature": args.temperature}
        result = summary(log.outcomes) | settings | {"seconds": round(time.perf_counter() - started, 1)}
    print(json.dumps(result, indent=2))
    return 1 if result["invalid"] else 0


class Log:
    """The outcomes so far, each a line of a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a+b")
        self._lock = threading.Lock()
        self.outcomes: list[Outcome] = []
        if self._file is not None:
            self._file.seek(0)
            self.outcomes = [msgspec.json.decode(line, type=Outcome) for line in self._file]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)
            if self._file is not None:
                self._file.write(msgspec.json.encode(outcome) + b"\n")
                self._file.flush()


def ask(llm: LLM, entry: Entry, sampling: SamplingOptions) -> Outcome:
    """One question."""
    completion = llm.chat(
        [{"role": "user", "content": entry.question}],
        sampling,
        tools=entry.tools(),
        tool_choice="required",
        parallel_tool_calls="parallel" in entry.group,
    )
    ended = completion.finish_reason not in ("length", "error")
    return Outcome(
        id=entry.id,
        group=entry.group,
        finish_reason=completion.finish_reason,
        num_calls=len(completion.tool_calls),
        output_tokens=completion.usage.output,
        faults=tuple(faults_of(entry, completion)) if ended else (),
        error=completion.error,
    )


def faults_of(entry: Entry, completion: Completion) -> list[str]:
    """What is wrong with an output that has ended; nothing if it is right."""
    if completion.finish_reason != "tool_calls" or completion.text:
        return [f"ended in {completion.finish_reason} with the text {completion.text[:100]!r}"]
    schemas = {function["name"]: function["parameters"] for function in entry.functions}
    faults = []
    for call in completion.tool_calls:
        try:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        except (KeyError, ValueError, jsonschema.ValidationError) as fault:
            faults.append(f"{call.name}({call.arguments[:200]}): {type(fault).__name__}: {str(fault)[:200]}")
    return faults


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts, in all and by set."""
    groups = {outcome.group for outcome in outcomes}
    return counts(outcomes) | {
        "sets": {group: counts([o for o in outcomes if o.group == group]) for group in sorted(groups)},
        "faults": [f"{o.id}: {fault}" for o in outcomes for fault in o.faults][:10],
        "errors": [o.error for o in outcomes if o.error is not None][:10],
    }


def counts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ends = Counter(outcome.finish_reason for outcome in outcomes)
    return {
        "outputs": len(outcomes),
        "ends": dict(ends),
        "invalid": sum(bool(outcome.faults) for outcome in outcomes),
        "share_cut_by_length": round(ends["length"] / len(outcomes), 4) if outcomes else None,
        "calls": sum(outcome.num_calls for outcome in outcomes),
        "output_tokens": sum(outcome.output_tokens for outcome in outcomes),
    }


if __name__ == "__main__":
    sys.exit(main())
