"""What a strategy of compaction is: it says with which words a run of turns, or one result, is to be replaced."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from deeproot.runtime.context.chat_model import ChatModel
from deeproot.runtime.context.compaction.evidence import Count
from deeproot.runtime.context.compaction.turns import Turn
from deeproot.runtime.context.event_log import EventLog


class Unit(StrEnum):
    """What a strategy replaces at a time."""

    NOTHING = "nothing"
    RESULT = "result"
    """One tool result; the call stays."""
    RUN = "run"
    """A run of turns between two cut points: an episode, and later several of them: a phase."""
    ALL = "all"
    """Everything before the newest turns, at once."""


@dataclass(frozen=True, slots=True)
class Span:
    """What is to be replaced. `turns`: as the raw log has them, never as an earlier summary says.

    `earlier`: texts of records that stand for parts of it now. `query`: task and newest request. `max_tokens`: what the
    replacement should not exceed, open diagnostics apart: those the host adds itself. `upto`: the last event covered.
    """

    turns: tuple[Turn, ...]
    query: str
    max_tokens: int
    upto: int
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tools:
    """What a strategy works with. `model` None: offline, by the deterministic extractor."""

    log: EventLog
    count: Count
    model: ChatModel | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A replacement's words. `notes`: what went wrong on the way, for the report."""

    text: str
    notes: tuple[str, ...] = ()


class Strategy(Protocol):
    """One way of summarising."""

    @property
    def name(self) -> str:
        """How reports, benchmarks and the log call it."""
        ...

    @property
    def unit(self) -> Unit:
        """What it replaces at a time."""
        ...

    async def propose(self, span: Span, tools: Tools) -> Proposal:
        """Words for the place of `span`. Never raises for what a model did: it has an answer without one."""
        ...
