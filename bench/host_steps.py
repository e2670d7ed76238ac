"""Host time of scheduler steps in two source trees, in turns: what a change costs beside the model.

    git worktree add ../before COMMIT
    python bench/host_steps.py --before ../before --after .

Each round runs both trees in processes of their own, the first one alternating; the figures are medians over rounds, and the
ratio is that of each round's pair. `decode N`: a step of N decoding requests. `turn`: a request that goes on from a
cached prompt of 10,000 tokens with 500 new ones, from its arrival to its end.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from deeproot.bench.host_path import Decode
from deeproot.bench.report.text import text_table
from deeproot.scheduler.messages import AddRequest, SamplingParams

_PAGE, _CONTEXT, _NEW = 16, 10_000, 500


def measure(batches: list[int], steps: int) -> dict[str, float]:
    """Microseconds, medians, of the tree that this process imports."""
    found = {}
    for batch in batches:
        decode = Decode(_PAGE, batch, 1_000)
        for _ in range(20):
            decode.step()
        found[f"decode {batch}"] = _median_us([_timed(decode.step) for _ in range(steps)])
    found["turn"] = _turn(max(10, steps // 2))
    return found


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _turn(times: int) -> float:
    decode = Decode(_PAGE, 1, _CONTEXT)
    scheduler = decode.scheduler
    rng = np.random.default_rng(2)
    prefix = scheduler.table.running()[0].ids()[:_CONTEXT]
    sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=0)
    scheduler.abort("0")
    taken = []
    for i in range(times):
        ids = np.concatenate([prefix, rng.integers(4, 9_000, _NEW).astype(np.int32)]).tobytes()

        def turn(rid: str = f"t{i}", ids: bytes = ids) -> None:
            scheduler.add(AddRequest(rid, ids, sampling))
            while scheduler.has_work:
                scheduler.step()

        taken.append(_timed(turn))
    return _median_us(taken)


def _median_us(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def compare(before: Path, after: Path, batches: list[int], steps: int, rounds: int) -> str:
    """A Markdown table."""
    results: dict[Path, list[dict[str, float]]] = {before: [], after: []}
    for i in range(rounds):
        for tree in (before, after) if i % 2 == 0 else (after, before):
            results[tree].append(_run(tree, batches, steps))
    rows = []
    for name in results[before][0]:
        one, other = [[found[name] for found in results[tree]] for tree in (before, after)]
        ratio = statistics.median(b / a for a, b in zip(one, other, strict=True))
        rows.append(
            (name, f"{statistics.median(one):.1f}", f"{statistics.median(other):.1f}", f"{ratio:.3f}")
        )
    return text_table(("", "before, µs", "after, µs", "after / before"), rows)


def _run(tree: Path, batches: list[int], steps: int) -> dict[str, float]:
    packages = str((tree / "scripts" / "stubs_path").resolve(strict=True))
    command = [
        sys.executable,
        "-P",
        __file__,
        "--measure",
        "--steps",
        str(steps),
        "--batches",
        *map(str, batches),
    ]
    environment = {**os.environ, "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Host time of scheduler steps in two source trees")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--after", type=Path, default=Path())
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--measure", action="store_true", help="print the figures of the imported tree as JSON"
    )
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.batches, args.steps)))
    elif args.before is None:
        parser.error("--before is missing: the source tree to compare with")
    else:
        print(compare(args.before, args.after, args.batches, args.steps, args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
