"""What the check before a call costs, and which edits of a run rest on lines that had moved.

`python -m deeproot.bench.invalidation check [--files 10000] [--rounds 7]`: binds that many real files in a temporary
folder and times `Invalidator.check`: with nothing changed, after one of them was, and after all were. Milliseconds of the
wall clock, of the processor where it says so; one JSON object.

`python -m deeproot.bench.invalidation edits RUN.traj.json ...`: every edit by line range of SWE-agent runs as a table.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence, Set
from pathlib import Path
from statistics import median
from typing import Any

from deeproot.bench.report.text import text_table
from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.invalidation.entities import file_entity
from deeproot.runtime.context.invalidation.invalidator import Invalidator, Reading
from deeproot.runtime.context.invalidation.look import RACY_NS
from deeproot.runtime.context.invalidation.shifted_edits import RangeEdit, range_edits
from deeproot.runtime.context.swe_agent import import_trajectory

_A_FOLDER = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("--files", type=int, default=10_000)
    check.add_argument("--rounds", type=int, default=7)
    edits = commands.add_parser("edits")
    edits.add_argument("runs", nargs="+", type=Path)
    args = parser.parse_args(argv)
    if args.command == "check":
        if args.files < 1 or args.rounds < 1:
            parser.error("--files and --rounds must be at least 1")
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(time_checks(Path(folder), args.files, args.rounds)))
    else:
        print(table([(path.name, edits_of(path)) for path in args.runs]))
    return 0


def time_checks(folder: Path, files: int, rounds: int) -> dict[str, Any]:
    """Median and worst milliseconds of a check of `files` files, `rounds` times each."""
    paths = []
    for i in range(files):
        path = folder / f"d{i // _A_FOLDER}" / f"f{i}.c"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"int f{i};\n" * 50)
        paths.append(path)
    log = EventLog.memory()
    invalidator = Invalidator(log)
    reading = invalidator.reading(file_entity(path) for path in paths)
    for entity, version in reading.versions.items():
        invalidator.bind(record.tool_result(log, "c", entity.name), Reading({entity: version}))
    time.sleep(2 * RACY_NS / 1e9)
    live = set(range(1, len(log) + 1))
    first = _check(invalidator, live, 0)
    used = time.process_time()
    still = [_check(invalidator, live, 0) for _ in range(rounds)]
    used = (time.process_time() - used) * 1000 / rounds
    one = []
    for i in range(rounds):
        paths[i % files].write_text("changed\n" * (i + 1))
        one.append(_check(invalidator, live, min(i + 1, files)))
    for path in paths:
        path.write_text("all changed\n")
    every = _check(invalidator, live, files)
    return {
        "files": files,
        "rounds": rounds,
        "first_after_binding_ms": round(first, 2),
        "nothing_changed_ms": {"median": round(median(still), 2), "worst": round(max(still), 2)},
        "nothing_changed_processor_ms": round(used, 2),
        "one_changed_ms": {"median": round(median(one), 2), "worst": round(max(one), 2)},
        "all_changed_ms": round(every, 2),
    }


def _check(invalidator: Invalidator, live: Set[int], expected: int) -> float:
    """Milliseconds of one check, which must find that many."""
    start = time.perf_counter()
    found = invalidator.check(live)
    taken = (time.perf_counter() - start) * 1000
    if len(found) != expected:
        raise RuntimeError(f"the check found {len(found)} stale observations where {expected} are")
    return taken


def edits_of(path: Path) -> list[RangeEdit]:
    """The edits of one SWE-agent run."""
    log = EventLog.memory()
    import_trajectory(log, json.loads(path.read_text(encoding="utf-8")))
    return range_edits(log)


def table(runs: Sequence[tuple[str, Sequence[RangeEdit]]]) -> str:
    """One line an edit, and how many were stale."""
    rows = [
        (
            name,
            str(e.seq),
            e.path,
            f"{e.first}-{e.last}",
            str(e.shown or "never (not all of them)"),
            str(e.moved_by or "-"),
        )
        for name, edits in runs
        for e in edits
    ]
    heads = ("run", "event", "file", "lines", "last shown by event", "moved since by event")
    stale = sum(e.stale for _, edits in runs for e in edits)
    return f"{text_table(heads, rows)}\n\n{stale} of {len(rows)} edits rest on lines that had moved."


if __name__ == "__main__":
    sys.exit(main())
