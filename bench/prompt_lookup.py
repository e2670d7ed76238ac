"""Decode rate with and without guesses from prompt and output, on a transcript in which files are edited.

    python -m deeproot.bench.prompt_lookup --model ~/models/model.gguf

An agent has rewritten a file twice, each time with one change, and is asked for a third; a small model goes on with the
pattern and copies most of the file. Beside it stands a story, where there is nothing to copy, to see what guessing costs
there. The table says how many tokens are the same before the first that differs: all of them in float32; in bfloat16 a
step of another size rounds otherwise, and one of two near equals may win.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from deeproot.bench.report.text import text_table
from deeproot.runtime.llm import LLM
from deeproot.runtime.llm_completion import Completion
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.sampling_options import SamplingOptions
from deeproot.runtime.speculative import EXAMPLE, parse_speculative
from deeproot.scheduler.config import SpeculationConfig

FILE = '''class Inventory:
    """Items of a shop and how many there are."""

    def __init__(self):
        self.items = {}
        self.prices = {}

    def add(self, name, count, price):
        if count < 1:
            raise ValueError("count must be at least 1")
        self.items[name] = self.items.get(name, 0) + count
        self.prices[name] = price

    def remove(self, name, count):
        have = self.items.get(name, 0)
        if count > have:
            raise ValueError(f"only {have} of {name} are left")
        self.items[name] = have - count

    def total(self):
        return sum(self.prices[name] * count for name, count in self.items.items())
'''
CHANGES = (("Inventory", "Stock"), ("remove", "take"), ("total", "value"))
Messages = list[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Run:
    """One greedy answer."""

    task: str
    guessing: bool
    tokens: int
    steps: int
    drafted: int
    accepted: int
    decode_tokens_per_s: float
    """From the first token to the last."""
    same_tokens: int = 0
    """As without guesses, before the first that differs."""


def editing() -> Messages:
    """Two changes are done, the third is asked for."""
    text = FILE
    messages: Messages = []
    for old, new in CHANGES:
        ask = f"Rename {old} to {new} and write the whole file."
        messages.append({"role": "user", "content": f"{ask}\n```python\n{text}```"})
        text = text.replace(old, new)
        messages.append({"role": "assistant", "content": f"```python\n{text}```"})
    return messages[:-1]


def story() -> Messages:
    return [
        {"role": "user", "content": "Tell a long story about a lighthouse keeper who finds a strange map."}
    ]


TASKS = {"editing": editing, "story": story}


def measure(llm: LLM, task: str, num_tokens: int, guessing: bool) -> tuple[Run, tuple[int, ...]]:
    """One run, and its tokens."""
    counters = llm._engine.scheduler.counters
    before = replace(counters)
    times: list[float] = []
    sampling = SamplingOptions(max_tokens=num_tokens, temperature=0, ignore_eos=True)
    ids: tuple[int, ...] = ()
    for event in llm.stream_chat(TASKS[task](), sampling):
        times.append(time.perf_counter())
        if isinstance(event, Completion):
            ids = event.token_ids
    after = llm._engine.scheduler.counters
    rate = (len(ids) - 1) / (times[-1] - times[0])
    run = Run(
        task,
        guessing,
        len(ids),
        after.steps - before.steps,
        after.drafted - before.drafted,
        after.accepted - before.accepted,
        round(rate, 2),
    )
    return run, ids


def compare(options: EngineOptions, guesses: SpeculationConfig, num_tokens: int, rounds: int) -> list[Run]:
    """Every task with and without guesses, in turns, since machines drift."""
    with (
        LLM(options) as plain,
        LLM(replace(options, speculative_config=guesses)) as guessing,
    ):
        runs: list[Run] = []
        for task in TASKS:
            for _ in range(rounds):
                (one, wanted), (other, said) = (
                    measure(llm, task, num_tokens, llm is guessing) for llm in (plain, guessing)
                )
                runs += [replace(run, same_tokens=num_common(wanted, said)) for run in (one, other)]
    return runs


def num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How long the common start is."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def table(runs: Sequence[Run]) -> str:
    """Medians, as a table."""
    rows = []
    for task in TASKS:
        for guessing in (False, True):
            mine = [run for run in runs if run.task == task and run.guessing == guessing]
            rate = statistics.median(run.decode_tokens_per_s for run in mine)
            said = "yes" if guessing else "no"
            last = mine[-1]
            figures = (last.steps, last.drafted, last.accepted, last.same_tokens, f"{rate:.1f}")
            rows.append((task, said, *map(str, figures)))
    heads = ("task", "guesses", "steps", "drafted", "accepted", "tokens as without", "decode tok/s")
    return text_table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=256, help="of each answer (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculative-config", default=EXAMPLE, metavar="JSON")
    parser.add_argument("--out", help="file for every run as JSON")
    args = parser.parse_args()
    guesses = parse_speculative(args.speculative_config)
    if guesses is None:
        parser.error("--speculative-config must not be off: that is what it is compared with")
    options = EngineOptions(
        model=args.model, dtype=args.dtype, device=args.device, kv_cache_memory_bytes=256 * 2**20
    )
    runs = compare(options, guesses, args.tokens, args.rounds)
    print(table(runs))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump([asdict(run) for run in runs], file, indent=1)


if __name__ == "__main__":
    main()
