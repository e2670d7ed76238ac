"""How long the gates take on a log of 48 events.

`python -m deeproot.bench.audit [--events 48] [--rounds 200]`: a run with a workspace on disk and the ledger of it, held
against them. Three figures, milliseconds of wall time: reading the log and auditing with every artifact hashed from
disk; the same when the log was read before; and the gates alone on files that are hashed already. The bar is 2 ms for
the first.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deeproot.runtime.context import record
from deeproot.runtime.context.checkpoint.audit import audit
from deeproot.runtime.context.checkpoint.files import Snapshot, Workspace
from deeproot.runtime.context.checkpoint.ledger import ledger
from deeproot.runtime.context.checkpoint.trace import read_trace
from deeproot.runtime.context.event_log import EventLog

BAR_MS = 2.0
_FILES = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=200)
    args = parser.parse_args(argv)
    if args.events < 8 or args.rounds < 1:
        parser.error("give at least 8 events and 1 round")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder), args.events, args.rounds), indent=1))
    return 0


def measure(folder: Path, events: int, rounds: int) -> dict[str, object]:
    """Medians over `rounds`, after one warm-up."""
    files = Workspace(folder)
    for i in range(_FILES):
        (folder / f"file{i}.py").write_text(f"def f{i}() -> int:\n    return {i}\n" * 100)
    with EventLog.open(folder / "run.db") as log:
        make_log(log, events)
        trace = read_trace(log)
        checkpoint = ledger(trace, files)
        hashed = Snapshot(files)
        times = {
            "read_and_audit_ms": _median(lambda: audit(checkpoint, read_trace(log), files), rounds),
            "audit_ms": _median(lambda: audit(checkpoint, trace, files), rounds),
            "gates_ms": _median(lambda: audit(checkpoint, trace, hashed), rounds),
        }
        size = {
            "events": len(log),
            "milestones": len(checkpoint.milestones),
            "artifacts": len(checkpoint.artifacts),
            "constraints": len(checkpoint.constraints),
        }
    return {**size, **times, "bar_ms": BAR_MS}


def make_log(log: EventLog, events: int) -> None:
    """A run of that many events: policy, two constraints, task, then calls that show and change files, with results."""
    record.policy(log, "You fix failing tests.")
    record.constraint(log, "Never edit vendor/.")
    record.constraint(log, "Run pytest with --db-port=5433.")
    record.user(log, "tests/test_auth.py fails. Fix it.")
    for i in range((events - len(log)) // 2):
        command = f"cat file{i % _FILES}.py" if i % 3 else f"sed -i s/a/b/ file{i % _FILES}.py"
        arguments = json.dumps({"cmd": command})
        call = {"id": f"c{i}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        record.assistant(log, f"Step {i}.", tool_calls=[call])
        output = "\n".join(f"line {j} of output {i}" for j in range(100))
        record.tool_result(log, f"c{i}", output, name="bash", exit_code=i % 2)


def _median(run: Callable[[], Sequence[object]], rounds: int) -> float:
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        found = run()
        times.append((time.perf_counter() - start) * 1000)
        if found:
            raise RuntimeError(f"a true checkpoint was refused: {found}")
    return round(statistics.median(times[1:]), 4)


if __name__ == "__main__":
    sys.exit(main())
