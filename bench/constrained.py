"""Do a real model's constrained outputs validate? On the questions and functions of BFCL.

    python -m deeproot.bench.constrained --model model.gguf [--every 1] [--max-tokens 1024] [--parallel 16]

Each question is asked with its functions as tools and `tool_choice: required`, so that also a model that has never
learnt to call tools must. Every output that ends in `tool_calls` is checked, call by call: the function is one of those
that were given, the arguments validate against its schema. One that is cut by its length is counted apart. One JSON
object is printed; the exit status is 1 if an output did not validate.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jsonschema

from deeproot.bench.bfcl import Entry, read_entries
from deeproot.runtime.llm import LLM, Completion
from deeproot.runtime.sampling_options import SamplingOptions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one question."""

    entry: Entry
    completion: Completion
    faults: tuple[str, ...]
    """Of an output that has ended: what does not validate."""


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
    args = parser.parse_args(argv)
    entries = read_entries()[:: args.every]
    sampling = SamplingOptions(max_tokens=args.max_tokens, temperature=args.temperature, seed=0)
    started = time.perf_counter()
    with LLM(args.model, load_format=args.load_format, max_num_seqs=max(args.parallel, 1)) as llm:
        loaded = time.perf_counter()
        with ThreadPoolExecutor(args.parallel) as pool:
            outcomes = list(pool.map(lambda entry: ask(llm, entry, sampling), entries))
    result = summary(outcomes) | {
        "model": args.model,
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "seconds": round(time.perf_counter() - loaded, 1),
        "seconds_to_load": round(loaded - started, 1),
    }
    print(json.dumps(result, indent=2))
    return 1 if result["invalid"] else 0


def ask(llm: LLM, entry: Entry, sampling: SamplingOptions) -> Outcome:
    """One question."""
    messages = [{"role": "user", "content": entry.question}]
    completion = llm.chat(messages, sampling, tools=entry.tools(), tool_choice="required")
    ended = completion.finish_reason not in ("length", "error")
    return Outcome(entry, completion, tuple(faults_of(entry, completion)) if ended else ())


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
    groups = {outcome.entry.group for outcome in outcomes}
    return counts(outcomes) | {
        "sets": {group: counts([o for o in outcomes if o.entry.group == group]) for group in sorted(groups)},
        "faults": [f"{o.entry.id}: {fault}" for o in outcomes for fault in o.faults][:10],
        "errors": [o.completion.error for o in outcomes if o.completion.error is not None][:10],
    }


def counts(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ends = Counter(outcome.completion.finish_reason for outcome in outcomes)
    return {
        "outputs": len(outcomes),
        "ends": dict(ends),
        "invalid": sum(bool(outcome.faults) for outcome in outcomes),
        "share_cut_by_length": round(ends["length"] / len(outcomes), 4) if outcomes else None,
        "calls": sum(len(outcome.completion.tool_calls) for outcome in outcomes),
        "output_tokens": sum(outcome.completion.usage.output for outcome in outcomes),
    }


if __name__ == "__main__":
    sys.exit(main())
