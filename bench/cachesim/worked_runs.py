"""Runs and what happens around them: files that tools show and change, skills that are chosen.

Recorded runs say none of that, so that they have events only; made ones have files of their own.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from deeproot.bench.cachesim.made_runs import AgentShape
from deeproot.runtime.context import record
from deeproot.runtime.context.event_log import EventLog

SKILLS = ("release-notes", "database-migration")
_NS = 1_000_000_000
_FILES = 8
_FILE_LINES, _LINE_TOKENS = 40, 10
_READ, _EDIT = 0.45, 0.35
"""Shares of the turns that read a file, and that edit one; the others run the tests."""
_OUTSIDE = 0.08
"""Of the turns, in which somebody else changes a file."""
_SKILL_TOKENS = 600
_THINK_TOKENS = 60


@dataclass(frozen=True, slots=True)
class Happening:
    """What goes with one event. `needs`: the file that the action about to be made changes; `skill`: name and text of one
    chosen before it; `shows`: the file of which a tool result is a copy; `writes`: path and text of a file that has changed
    once the event is there, by the agent's own call or (`own` False) by somebody else."""

    needs: str | None = None
    skill: tuple[str, str] | None = None
    shows: str | None = None
    writes: tuple[str, str] | None = None
    own: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """A log, the files there were at its start, and happenings by the number of their event."""

    log: EventLog
    files: Mapping[str, str] = field(default_factory=dict)
    happenings: Mapping[int, Happening] = field(default_factory=dict)

    @property
    def is_worked(self) -> bool:
        """Whether there are files, skills, status readings and thinking in it."""
        return bool(self.files)


def worked_run(seed: int, turns: int, *, root_seed: int = 0, start_s: float = 0.0) -> Run:
    """A made run of `turns` calls in which files are read and edited, tests run, two skills chosen; with thinking and a
    status reading before each call. Words of four characters: a token each by the rough count."""
    return _Worker(seed, root_seed, start_s).run(turns)


class _Worker:
    def __init__(self, seed: int, root_seed: int, start_s: float) -> None:
        self._shape = AgentShape()
        self._rng = np.random.default_rng(seed)
        self._words = random.Random(root_seed)
        self._ns = int(start_s * _NS)
        self._log = EventLog.memory(clock=lambda: self._ns)
        self._happenings: dict[int, Happening] = {}
        self._root()
        self._words.seed(f"{seed} work")
        self._files = {f"src/part_{i}.py": self._file_text() for i in range(_FILES)}
        self._start_files = dict(self._files)
        self._shown: dict[str, str] = {}
        """What the agent knows of each file: its text when it was last read."""

    def run(self, turns: int) -> Run:
        chosen = {turns // 5: SKILLS[0], turns // 2: SKILLS[1]}
        record.user(self._log, self._text(self._shape.task.count(self._rng)))
        for turn in range(turns):
            record.state(self._log, "turn", f"{turn} of {turns}")
            record.state(self._log, "tests", f"{self._words.randrange(9)} failing")
            name = chosen.get(turn)
            self._turn(turn, None if name is None else (name, self._text(_SKILL_TOKENS)))
        return Run(self._log, self._start_files, self._happenings)

    def _turn(self, turn: int, skill: tuple[str, str] | None) -> None:
        draw = self._words.random()
        path = self._words.choice(list(self._files))
        kind = "read_file" if draw < _READ else "edit_file" if draw < _READ + _EDIT else "run_tests"
        if kind == "edit_file" and path not in self._shown:
            kind = "read_file"
        arguments = {} if kind == "run_tests" else {"path": path}
        if kind == "edit_file":  # joins what two files showed
            other = self._words.choice(list(self._shown))
            arguments |= {"old": self._name_in(path), "like": self._name_in(other)}
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": kind, "arguments": json.dumps(arguments)},
        }
        said = f"<think>{self._text(_THINK_TOKENS)}</think>{self._text(self._shape.answer.count(self._rng))}"
        seq = record.assistant(self._log, said, tool_calls=[call])
        self._happenings[seq] = Happening(needs=path if kind == "edit_file" else None, skill=skill)
        self._ns += int(self._shape.gap_s.draw(self._rng) * _NS)
        seq = record.tool_result(self._log, f"c{turn}", self._result(kind, path), name=kind, exit_code=0)
        if kind == "read_file":
            self._shown[path] = self._files[path]
            self._happenings[seq] = Happening(shows=path)
        elif kind == "edit_file":
            self._files[path] = self._file_text()
            self._happenings[seq] = Happening(writes=(path, self._files[path]))
        elif self._words.random() < _OUTSIDE / (1 - _READ - _EDIT):
            self._files[path] = self._file_text()
            self._happenings[seq] = Happening(writes=(path, self._files[path]), own=False)

    def _result(self, kind: str, path: str) -> str:
        if kind == "read_file":
            return self._files[path]
        return (
            f"{path} was edited" if kind == "edit_file" else self._text(self._shape.output.count(self._rng))
        )

    def _root(self) -> None:
        tools = [
            {
                "type": "function",
                "function": {"name": name, "description": self._text(60), "parameters": {"type": "object"}},
            }
            for name in ("read_file", "edit_file", "run_tests", "search", "list_files", "shell")
        ]
        record.policy(self._log, self._text(self._shape.root_tokens - 60 * len(tools)))
        record.constraint(self._log, "Never edit vendor/.")
        record.tools(self._log, tools)

    def _file_text(self) -> str:
        """Lines that each define a name of their own."""
        return "\n".join(
            f"v{self._words.randrange(10**9):09d} = {self._text(_LINE_TOKENS)}" for _ in range(_FILE_LINES)
        )

    def _name_in(self, path: str) -> str:
        """One of the names that the agent has seen there."""
        return self._words.choice(self._shown[path].split("\n")).split(" ")[0]

    def _text(self, tokens: int) -> str:
        return " ".join(f"{self._words.randrange(1000):03d}" for _ in range(tokens))
