"""Steps of the engine on a CPU, without scheduler and server: the compiled backend beside torch's, or with weights that
stay quantised, in turn.

    python -m deeproot.bench.cpu_steps --model MODEL
    python -m deeproot.bench.cpu_steps --model MODEL.gguf --sides cpu cpu-int8 cpu-gguf

Each round runs every step once with each backend; printed are the medians of the wall times, and beside them those of
the CPU time of all threads, which says more on a machine that others use, too.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from deeproot.engine.attention_choice import AttentionName
from deeproot.engine.batch import ForwardBatch, several_sequences
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import LoadFormat, faster_model, load_model, make_attention
from deeproot.engine.quantization import Quantization
from deeproot.engine.runner import Runner

PAGE_SIZE = 64
CHUNK = 1024
"""New tokens of a step at most, as the server has it by default."""
SIDES: dict[str, tuple[AttentionName, Quantization]] = {
    "torch": ("torch", "none"),
    "cpu": ("cpu", "none"),
    "cpu-int8": ("cpu", "int8"),
    "cpu-gguf": ("cpu", "gguf"),
}
"""What is compared: backends, and what the weights are in."""


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences alike: `new` tokens each after `cached` ones, in steps of CHUNK."""

    name: str
    num_seqs: int
    cached: int
    new: int


CASES = (
    Case("decode, 1 stream at 130 tokens", 1, 129, 1),
    Case("decode, 8 streams at 130 tokens", 8, 129, 1),
    Case("decode, 32 streams at 130 tokens", 32, 129, 1),
    Case("decode, 1 stream at 6,000 tokens", 1, 5999, 1),
    Case("prefill of 512 tokens", 1, 0, 512),
    Case("prefill of 2,048 tokens", 1, 0, 2048),
    Case("prefill of 6,000 tokens", 1, 0, 6000),
    Case("50 tokens after 6,000 cached", 1, 6000, 50),
)


@dataclass(frozen=True, slots=True)
class Time:
    wall_s: float
    cpu_s: float


def batch_of(case: Case, done: int, count: int, vocab_size: int) -> ForwardBatch:
    """The step in which each sequence of a case computes `count` tokens after its first `done`."""
    num_pages = -(-(case.cached + case.new) // PAGE_SIZE)
    pages = np.arange(case.num_seqs * num_pages, dtype=np.int32).reshape(case.num_seqs, num_pages)
    shape = (case.num_seqs, done + count)
    ids = np.random.default_rng(done).integers(0, vocab_size, shape).astype(np.int32)
    return several_sequences(
        [(own_ids, done, own_pages) for own_ids, own_pages in zip(ids, pages, strict=True)],
        PAGE_SIZE,
        last_only=True,
    )


def measure(runner: Runner, case: Case) -> Time:
    """What one run of a case takes; what is cached already is whatever the pool holds."""
    vocab_size = runner.model.config.vocab_size
    starts = range(case.cached, case.cached + case.new, CHUNK)
    batches = [
        batch_of(case, start, min(CHUNK, case.cached + case.new - start), vocab_size) for start in starts
    ]
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        runner.forward(batch)
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def make_runner(
    model: Path,
    load_format: LoadFormat,
    backend: AttentionName,
    num_pages: int,
    quantization: Quantization = "none",
) -> Runner:
    """A runner of the model with that backend, its pool full of zeros."""
    loaded = load_model(model, load_format, quantization=quantization)
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), num_pages)
    pool.free(pool.alloc(num_pages))
    attention = make_attention(loaded.config, pool, backend, loaded.dtype)
    return Runner(faster_model(loaded, attention), pool, attention)


def run(
    make: Callable[[str, int], Runner], cases: tuple[Case, ...], rounds: int, sides: Sequence[str]
) -> dict[str, dict[str, list[Time]]]:
    """Times by case and side; one round more is run first and not counted."""
    pages = max(case.num_seqs * -(-(case.cached + case.new) // PAGE_SIZE) for case in cases)
    runners = {side: make(side, pages) for side in sides}
    times: dict[str, dict[str, list[Time]]] = {case.name: {side: [] for side in runners} for case in cases}
    for i in range(rounds + 1):
        for case in cases:
            for side, runner in runners.items():
                taken = measure(runner, case)
                if i:
                    times[case.name][side].append(taken)
    return times


def table(times: dict[str, dict[str, list[Time]]], cases: tuple[Case, ...]) -> list[str]:
    """Markdown: medians in ms, and tokens a second by the wall."""
    sides = list(next(iter(times.values())))
    heads = [f"{side} ms (CPU ms), tok/s" for side in sides]
    lines = [f"| step | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    for case in cases:
        cells = []
        for side in sides:
            wall = statistics.median(t.wall_s for t in times[case.name][side])
            cpu = statistics.median(t.cpu_s for t in times[case.name][side])
            cells.append(f"{wall * 1e3:.1f} ({cpu * 1e3:.1f}), {case.num_seqs * case.new / wall:,.0f}")
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["torch", "cpu"])
    parser.add_argument("--longest", type=int, default=6050, help="leave out cases of more tokens")
    args = parser.parse_args(argv)
    cases = tuple(case for case in CASES if case.cached + case.new <= args.longest)

    def make(side: str, num_pages: int) -> Runner:
        backend, quantization = SIDES[side]
        return make_runner(args.model, args.load_format, backend, num_pages, quantization)

    times = run(make, cases, args.rounds, args.sides)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.rounds} rounds")
    print("\n".join(table(times, cases)))


if __name__ == "__main__":
    main()
