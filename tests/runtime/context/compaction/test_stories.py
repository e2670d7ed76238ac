"""The flag that a summary shed: port 5433, which the run had found out, and an agent that reads nothing but its prompt."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.layers import Layer, default_layers, gentle_layers
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.compaction.strategy import Strategy
from deeproot.runtime.context.event_log import EventLog
from deeproot.runtime.context.events import EventKind
from deeproot.runtime.context.grouping import turn_groups
from deeproot.runtime.context.host_items import host_item
from deeproot.runtime.context.items import Item, LayoutPolicy, Placement, Plan, PlanContext
from deeproot.runtime.context.policies import AppendOnly, SlidingWindow, place_groups, place_root
from deeproot.runtime.context.segments import Zone
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.working_set import WorkingSet

from .conftest import MakeSet

BUDGET = 6000
NARRATIVE = "The agent ran pytest on auth tests, but connections failed."
IGNORES_FLAG, HONOURS_FLAG = "PORT = 5432\n", "PORT = option('--db-port')\n"
REFUSED = "FAILED tests/test_auth.py - Connection refused: localhost:5432 (default)\n1 failed in 0.31s"
RESTART = "systemctl restart postgresql"
Messages = Sequence[Mapping[str, Any]]


@dataclass
class Database:
    """A machine on which the database listens on 5433, and tests whose fixture has to be told so. `ran`: its commands."""

    conftest: Path
    ran: list[str]

    def run(self, command: str) -> tuple[str, int]:
        self.ran.append(command)
        if command.startswith("systemctl"):
            return "ERROR: Access denied: user 'agent' lacks sudo privileges for systemctl.", 1
        if "--db-port=5433" in command and self.conftest.read_text() == HONOURS_FLAG:
            return "1 passed in 0.20s", 0
        return REFUSED, 1


def scripted_model(messages: Messages) -> str | None:
    """Runs again the newest test command that its prompt shows; with none in sight, it takes the database to be down."""
    text = "\n".join(
        [str(m["content"]) for m in messages]
        + [c["function"]["arguments"] for m in messages for c in m.get("tool_calls") or ()]
    )
    if "1 passed" in text:
        return None
    if "Access denied" in text:
        return RESTART
    flagged = re.findall(r"pytest tests/test_auth\.py --db-port=\d+", text)
    plain = re.findall(r"pytest tests/test_auth\.py", text)
    return flagged[-1] if flagged else plain[-1] if plain else RESTART


@dataclass(frozen=True)
class Narrative:
    """What a naive host does over its budget: a sentence for all turns but the newest three."""

    budget: int

    @property
    def name(self) -> str:
        return "narrative"

    def plan(self, items: Sequence[Item], context: PlanContext) -> Plan:
        groups = turn_groups(items)
        root = place_root(items)
        size = sum(p.item.tokens for p in root) + sum(group.tokens for group in groups)
        if size <= self.budget:
            return Plan((*root, *place_groups(groups, len(groups))))
        told = Placement(host_item("archived", NARRATIVE, context), Zone.TRUNK, "a summary")
        return Plan((*root, told, *place_groups(groups[-3:], 0)))


class NarrativeModel:
    """A summariser that tells the story and leaves out the flags."""

    async def complete(
        self, messages: Messages, *, max_tokens: int, json_schema: Mapping[str, Any] | None = None
    ) -> str:
        told = {"hypotheses": [NARRATIVE], "commands": [], "failures": [], "ruled_out": []}
        return json.dumps(told)


class Story:
    """Turn 2 without the flag, turn 4 with it, ten long reads, the fixture mended; from then on the model is asked."""

    def __init__(self, log: EventLog, folder: Path, prompt: Callable[[int], Messages]) -> None:
        self._log, self._prompt = log, prompt
        self._database = Database(folder / "conftest.py", [])
        self._database.conftest.write_text(IGNORES_FLAG)

    def play(self) -> list[str]:
        """What the model ran after the summary."""
        record.policy(self._log, "You fix failing tests.")
        record.constraint(self._log, "Never edit vendor/.")
        record.user(self._log, "tests/test_auth.py fails. Fix it.")
        self._call("pg_isready", "localhost:5433 - accepting connections", 0)
        self._run("pytest tests/test_auth.py")
        self._call("cat README", "see the fixture", 0)
        self._run("pytest tests/test_auth.py --db-port=5433")
        for i in range(10):
            self._call(f"cat src/module{i}.py", f"def part{i}(): return {i}\n" * 30, 0)
        self._database.conftest.write_text(HONOURS_FLAG)
        self._call("patch conftest.py", "patched", 0)
        self._database.ran.clear()
        for _ in range(3):
            command = scripted_model(self._prompt(200))
            if command is None:
                break
            self._run(command)
        return self._database.ran

    def _run(self, command: str) -> None:
        self._call(command, *self._database.run(command))

    def _call(self, command: str, output: str, exit_code: int) -> None:
        self._prompt(len(output) // 2)
        call_id = f"c{len(self._log)}"
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        made = {"id": call_id, "type": "function", "function": function}
        record.assistant(self._log, "I look.", tool_calls=[made])
        record.tool_result(self._log, call_id, output, name="bash", exit_code=exit_code)


def plain(working_set: WorkingSet, log: EventLog) -> Callable[[int], Messages]:
    return lambda incoming: working_set.assemble(log).messages if len(log) else ()


def compacted(compactor: Compactor, working_set: WorkingSet, log: EventLog) -> Callable[[int], Messages]:
    def prompt(incoming: int) -> Messages:
        asyncio.run(compactor.make_room(log, incoming))
        return working_set.assemble(log).messages

    return prompt


@pytest.mark.parametrize(
    "policy", [Narrative(BUDGET), SlidingWindow(BUDGET - 2500)], ids=["narrative", "window"]
)
def test_a_naive_prompt_restarts_the_database_for_ever(
    policy: LayoutPolicy, log: EventLog, make_set: MakeSet, tmp_path: Path
) -> None:
    ran = Story(log, tmp_path, plain(make_set(policy), log)).play()
    assert ran == [RESTART] * 3


def test_three_zones_keep_the_flag(log: EventLog, make_set: MakeSet, tmp_path: Path) -> None:
    working_set = make_set(ThreeZones(BUDGET))
    ran = Story(log, tmp_path, plain(working_set, log)).play()
    assert ran == ["pytest tests/test_auth.py --db-port=5433"]
    assert working_set.assemble(log).report.dropped


@pytest.mark.parametrize(
    ("strategy", "policy", "layers"),
    [
        *[(made, AppendOnly(), gentle_layers()) for made in strategies().values() if made.name != "none"],
        *[(made, ThreeZones(BUDGET), default_layers()) for made in strategies().values()],
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_no_strategy_sheds_the_flag(
    strategy: Strategy,
    policy: LayoutPolicy,
    layers: Sequence[Layer],
    log: EventLog,
    make_set: MakeSet,
    tmp_path: Path,
) -> None:
    """Not even where the model that summarises does: the host fills in what was run and how it failed."""
    working_set = make_set(policy)
    compactor = Compactor(
        working_set, budget=BUDGET, strategy=strategy, model=NarrativeModel(), layers=layers
    )
    ran = Story(log, tmp_path, compacted(compactor, working_set, log)).play()
    assert ran == ["pytest tests/test_auth.py --db-port=5433"]
    whole = make_set(AppendOnly()).assemble(uncompacted(log)).token_ids.size
    assert working_set.assemble(log).token_ids.size < BUDGET < whole


def uncompacted(log: EventLog) -> EventLog:
    """The same run without what compaction logged."""
    other = EventLog.memory()
    for event in log.read():
        if event.kind is not EventKind.STATE_CHANGE:
            other.append(
                event.kind,
                log.payload(event),
                data=event.data,
                call_id=event.call_id,
                exit_code=event.exit_code,
            )
    return other
