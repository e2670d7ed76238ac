"""What a format of tool calls is: how to find and read calls, and how they are written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from deeproot.runtime.chat.reply_events import CallIds, new_call_id
from deeproot.runtime.chat.text_source import Steps, TextSource

ToolSchemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the parameters of the tools that a request has, by name; empty: not known."""

Reader = Callable[[TextSource, str, ToolSchemas], Steps[None]]
"""Reads calls from where a mark has opened them; given which mark it was. See `text_source`."""


class Slot(Enum):
    """What changes from call to call."""

    NAME = auto()
    NAME_AS_JSON = auto()
    """The name as a JSON string, with its quotes."""
    INDEX = auto()
    """The number of the call; any whole number is read."""
    CALL_ID = auto()
    """Nine letters or digits; any are read."""
    ARGUMENTS = auto()


class Plain(Enum):
    """Ways to write all arguments at once."""

    JSON = auto()
    """A JSON object."""
    PYTHON = auto()
    """`key=value, …` with Python's literals."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """Arguments one by one: `before_key`, key, `before_value`, value, `after_value`. A value that the schema allows to
    be a string is written as it is, any other as JSON."""

    before_key: str
    before_value: str
    after_value: str


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes calls: `begin`, calls with `separator` between them, `end`. What a grammar for forced calls
    is made of; `ToolFormat.read` understands it."""

    call: tuple[str | Slot, ...]
    begin: str = ""
    separator: str = "\n"
    end: str = ""
    arguments: Plain | Tagged = Plain.JSON


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format; `call_parser.CallParser` serves them all."""

    name: str
    openings: tuple[str, ...]
    """Texts that begin calls; no one begins another."""
    read: Reader
    form: CallForm
    other_marks: tuple[str, ...] = ()
    """Texts beside the openings that are special tokens in some vocabularies and that the reader has to see."""
    start_letters: str = ""
    """A reply that starts with one of these may be calls without an opening; `read` is given "" as the mark."""
    new_call_id: CallIds = new_call_id
    ends_reasoning: bool = False
    """Whether the openings also end reasoning that the model has not closed."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Every text that the parser must see, also where it is a special token."""
        return self.openings + self.other_marks
