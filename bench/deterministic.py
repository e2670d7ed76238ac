"""The deterministic mode: what it costs, and whether logits are bit for bit the same, on a real model.

Prompts and single tokens are timed in ordinary steps and in pieces of several numbers of rows, turn about; then the logits
of one prompt are compared over chunks of 1, 64 and 512 tokens, cached and not, alone and in a batch of 8, in both ways.

    python -m deeproot.bench.deterministic --model MODEL --dtypes float32 bfloat16 --out bench/results/deterministic.json

`--out` writes the figures, and beside them a table of the same name as Markdown.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeproot.bench.report.environment import environment
from deeproot.bench.report.text import text_table
from deeproot.engine.attention_choice import AttentionNeeds, choose_attention
from deeproot.engine.batch import ForwardBatch, Int32Array, several_sequences
from deeproot.engine.fixed_rows import FixedRows
from deeproot.engine.invariance import is_invariant
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import LoadedModel, load_model, make_attention
from deeproot.engine.runner import Runner

PAGE = 64
BATCH = 8


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians, in seconds."""

    rows: int | None
    """Of a piece; None: ordinary steps."""
    invariant: bool
    """By the check that is made at load."""
    prefill_s: float
    decode_s: float
    """A step of one sequence."""
    decode_batch_s: float
    """A step of a batch of 8."""


@dataclass(frozen=True, slots=True)
class Sameness:
    """Logits of a prompt's last tokens against those of chunks of 512: bitwise equal, and the largest difference."""

    case: str
    equal: bool
    largest: float


class Bench:
    """A loaded model over a pool that holds one long sequence and seven others."""

    def __init__(self, loaded: LoadedModel, num_tokens: int) -> None:
        self.loaded = loaded
        self.ids = np.random.default_rng(0).integers(0, loaded.config.vocab_size, num_tokens).astype(np.int32)
        self.per_sequence = -(-num_tokens // PAGE)
        layout = loaded.config.kv_layout(PAGE, loaded.dtype)
        self.pool = KVPool(layout, (BATCH + 1) * self.per_sequence + 8, loaded.device)
        self.pages = np.split(self.pool.alloc((BATCH + 1) * self.per_sequence), BATCH + 1)

    def runner(self, rows: int | None) -> Runner:
        """Ordinary for None."""
        needs = AttentionNeeds(
            self.loaded.device,
            self.loaded.dtype,
            self.pool.layout,
            self.loaded.config.num_qo_heads,
            rows is not None,
        )
        name = choose_attention("auto", needs).name
        attention = make_attention(
            self.loaded.config, self.pool, name, self.loaded.dtype, deterministic=rows is not None
        )
        cut = None if rows is None else FixedRows(rows, self.pool.padding_page, PAGE)
        return Runner(self.loaded.model, self.pool, attention, self.loaded.device, fixed_rows=cut)

    def chunk(self, runner: Runner, start: int, end: int, pages: Int32Array | None = None) -> torch.Tensor:
        """Logits of some tokens of the long sequence, those before them cached."""
        own = self.pages[0] if pages is None else pages
        return runner.logits(several_sequences([(self.ids[:end], start, own)], PAGE))

    def cost(self, rows: int | None, repeats: int) -> Cost:
        runner, n = self.runner(rows), len(self.ids)
        alone = several_sequences([(self.ids, n - 1, self.pages[0])], PAGE)
        together = several_sequences([(self.ids, n - 1, pages) for pages in self.pages[:BATCH]], PAGE)
        whole = several_sequences([(self.ids, 0, self.pages[0])], PAGE)
        return Cost(
            rows,
            is_invariant(runner, rows or 16),
            self._seconds(runner, whole, repeats),
            self._seconds(runner, alone, 4 * repeats),
            self._seconds(runner, together, 2 * repeats),
        )

    def _seconds(self, runner: Runner, batch: ForwardBatch, repeats: int) -> float:
        def run() -> None:
            runner.forward(batch)

        run()
        return statistics.median(_timed(run) for _ in range(repeats))

    def sameness(self, rows: int | None, last: int) -> list[Sameness]:
        """Of the last `last` tokens."""
        runner, n = self.runner(rows), len(self.ids)
        wanted = self._in_chunks(runner, 512, n)[-last:]
        found = [
            ("chunks of 64", self._in_chunks(runner, 64, n)[-last:]),
            ("chunks of 1", torch.cat([self.chunk(runner, i, i + 1) for i in range(n - last, n)])),
        ]
        kept = (n - last) // PAGE
        self.chunk(runner, 0, kept * PAGE, self.pages[1])
        mixed = np.concatenate((self.pages[1][:kept], self.pages[0][kept:]))
        found.append(("cached by another", self.chunk(runner, kept * PAGE, n, mixed)[-last:]))
        rng = np.random.default_rng(1)
        others = [
            (rng.permutation(self.ids)[: PAGE * self.per_sequence - 7 * i - 1], 0, pages)
            for i, pages in enumerate(self.pages[2 : BATCH + 1])
        ]
        batch = several_sequences([*others[:3], (self.ids, n - last, self.pages[0]), *others[3:]], PAGE)
        before = sum(len(ids) for ids, _, _ in others[:3])
        found.append(("in a batch of 8", runner.logits(batch)[before : before + last]))
        return [
            Sameness(case, torch.equal(logits, wanted), float((logits - wanted).abs().max()))
            for case, logits in found
        ]

    def _in_chunks(self, runner: Runner, size: int, n: int) -> torch.Tensor:
        return torch.cat([self.chunk(runner, i, min(i + size, n)) for i in range(0, n, size)])


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def run(
    model: Path,
    dtype: str,
    num_tokens: int,
    rows: Sequence[int],
    last: int,
    repeats: int,
    device: str = "cpu",
) -> dict[str, Any]:
    """All figures."""
    before = environment()
    bench = Bench(load_model(model, dtype=dtype, device=device), num_tokens)
    costs = [bench.cost(one, repeats) for one in (None, *rows)]
    chosen = next((cost.rows for cost in costs[1:] if cost.invariant), None)
    return {
        "model": model.name,
        "dtype": dtype,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "processor": before["device"],
        "load": before["load before"],
        "torch": torch.__version__,
        "tokens": num_tokens,
        "repeats": repeats,
        "costs": [asdict(cost) for cost in costs],
        "ordinary": [asdict(one) for one in bench.sameness(None, last)],
        "deterministic": [] if chosen is None else [asdict(one) for one in bench.sameness(chosen, last)],
    }


def page(records: Sequence[dict[str, Any]], command: str) -> str:
    """The figures of several dtypes as Markdown."""
    first = records[0]
    parts = [
        "# What the deterministic mode costs",
        f"`{command}`",
        f"{first['model']}, a prompt of {first['tokens']} tokens, {first['threads']} threads, torch {first['torch']}, on"
        f" {first['processor'] if first['device'] == 'cpu' else first['device']}; load before: {first['load']}. Medians of"
        f" {first['repeats']} forward passes of the prompt, of twice as many of a batch of 8, of four times as many of one"
        " token. In brackets the multiple of an ordinary step's time.",
    ]
    for record in records:
        ordinary = record["costs"][0]
        rows = [
            (
                "ordinary" if cost["rows"] is None else f"{cost['rows']} rows",
                "" if cost["rows"] is None else "yes" if cost["invariant"] else "no",
                *(_cell(cost[name], ordinary[name]) for name in ("prefill_s", "decode_s", "decode_batch_s")),
            )
            for cost in record["costs"]
        ]
        heads = (
            "in pieces of",
            "passes the check",
            "prompt, ms",
            "one token, ms",
            "a token of each of 8, ms",
        )
        parts += [f"## {record['dtype']}", text_table(heads, rows)]
        for name in ("ordinary", "deterministic"):
            if record[name]:
                same = ", ".join(
                    f"{one['case']} {'equal' if one['equal'] else 'differ by ' + format(one['largest'], '.2g')}"
                    for one in record[name]
                )
                parts.append(f"Logits against those of chunks of 512, {name}: {same}.")
    return "\n\n".join(parts) + "\n"


def _cell(seconds: float, ordinary_s: float) -> str:
    return f"{seconds * 1e3:,.1f} ({seconds / ordinary_s:.1f})"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dtypes", nargs="+", default=["auto"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--tokens", type=int, default=600, help="of the prompt")
    parser.add_argument("--last", type=int, default=24, help="tokens whose logits are compared")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 32, 16, 8], help="of a piece")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write JSON here, and a table beside it")
    args = parser.parse_args(argv)
    records = [
        run(args.model, dtype, args.tokens, args.rows, args.last, args.repeats, args.device)
        for dtype in args.dtypes
    ]
    dtypes = " ".join(args.dtypes)
    table = page(records, f"python -m deeproot.bench.deterministic --model MODEL --dtypes {dtypes}")
    print(table)
    if args.out:
        args.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        args.out.with_suffix(".md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
