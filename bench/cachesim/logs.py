"""Agents' runs as event logs with times: recorded, made, or from files."""

import json
import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from deeproot.bench.cachesim.conversations import GAP_S
from deeproot.bench.cachesim.made_runs import AgentShape
from deeproot.bench.recorded import airline_documents
from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog, NewEvent
from deeproot.runtime.context.openai_messages import LogImportError, import_messages
from deeproot.runtime.context.swe_agent import import_trajectory

BETWEEN_RUNS_S = 67.0
"""Between two runs' starts: no multiple of `GAP_S`, so that runs do not have each other's times."""
_NS = 1_000_000_000
_TOOLS = ("read_file", "edit_file", "run_tests", "search", "list_files", "shell")


def airline_logs(most: int) -> list[EventLog]:
    """The recorded airline runs; they have no times, so that a run starts `BETWEEN_RUNS_S` after the one before, and
    each message comes `GAP_S` after the last."""
    made = []
    for i, document in enumerate(airline_documents(most)):
        messages = document["messages"]
        log = EventLog.memory()
        times = [int((i * BETWEEN_RUNS_S + j * GAP_S) * _NS) for j in range(len(messages))]
        import_messages(log, messages, times_ns=times)
        made.append(log)
    return made


def read_log(path: Path) -> EventLog:
    """A SWE-agent trajectory (`.json`, `.traj`) or a log that `EventLog.open` has written.

    Raises `LogImportError`, `EventLogError` or OSError.
    """
    if path.suffix not in (".json", ".traj"):
        if not path.is_file():
            raise LogImportError(f"{path}: there is no such file")
        with EventLog.open(path) as stored:
            return _copy(stored)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LogImportError(f"{path}: not JSON ({error})") from None
    if not isinstance(document, Mapping):
        raise LogImportError(f"{path}: is {type(document).__name__}; give a SWE-agent .traj document")
    log = EventLog.memory()
    import_trajectory(log, document, start_ns=0)
    return log


def made_logs(count: int, seed: int, turns: int) -> list[EventLog]:
    """Runs that start `BETWEEN_RUNS_S` apart and have their rules and tools in common."""
    return [made_log(seed + i, turns, root_seed=seed, start_s=i * BETWEEN_RUNS_S) for i in range(count)]


def made_log(
    seed: int, turns: int, *, root_seed: int = 0, start_s: float = 0.0, shape: AgentShape | None = None
) -> EventLog:
    """A run of `turns` calls with tools, rules and constraints, of words of four characters: a token each by the rough
    count. Sizes and gaps are drawn from `shape` (None: the usual one)."""
    shape = shape or AgentShape()
    rng, words = np.random.default_rng(seed), random.Random(root_seed)
    now = _Clock(int(start_s * _NS))
    log = EventLog.memory(clock=now.read)

    def text(tokens: int) -> str:
        return " ".join(f"{words.randrange(1000):03d}" for _ in range(tokens))

    schemas = [
        {
            "type": "function",
            "function": {"name": name, "description": text(60), "parameters": {"type": "object"}},
        }
        for name in _TOOLS
    ]
    record.policy(log, text(shape.root_tokens - 60 * len(_TOOLS)))
    record.constraint(log, "Never edit vendor/.")
    record.tools(log, schemas)
    words.seed(f"{seed} task")
    record.user(log, text(shape.task.count(rng)))
    for turn in range(turns):
        name = words.choice(_TOOLS)
        called = {"name": name, "arguments": json.dumps({"argument": text(8)})}
        call = {"id": f"c{turn}", "type": "function", "function": called}
        record.assistant(log, text(shape.answer.count(rng)), tool_calls=[call])
        now.ns += int(shape.gap_s.draw(rng) * _NS)
        record.tool_result(log, f"c{turn}", text(shape.output.count(rng)), name=name, exit_code=0)
    return log


class _Clock:
    """Time that passes only when it is told to."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def read(self) -> int:
        return self.ns


def _copy(stored: EventLog) -> EventLog:
    log = EventLog.memory()
    log.extend(
        [
            NewEvent(e.kind, stored.payload(e), e.data, e.call_id, e.exit_code, e.time_ns)
            for e in stored.read()
        ]
    )
    return log
