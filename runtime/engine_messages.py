"""What travels between the server's process and the engine's, as MessagePack over ZeroMQ.

Both sides are the same version of deeproot: the engine's process is started by the server's.
"""

from pathlib import Path
from typing import TypeAlias

import msgspec

from deeproot.runtime.options import EngineOptions, LogFormat
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.questions import Answer, Question
from deeproot.scheduler.stats import EngineStats


class EngineInfo(msgspec.Struct, frozen=True):
    """What the text side must know of a loaded engine."""

    max_model_len: int
    """Tokens of prompt and output together, at most."""
    max_num_seqs: int
    vocab_size: int
    dtype: str
    device: str
    attention: str
    """Name of the attention backend."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Bytes of weights that are loaded, and bytes in all."""

    done: int
    total: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo
    stats: EngineStats


class CannotStart(msgspec.Struct, frozen=True, tag="cannot_start"):
    """One line for the user."""

    reason: str


class News(msgspec.Struct, frozen=True, tag="news"):
    """A step's outputs, in order, and the engine's figures after it."""

    outputs: list[TokenOutput]
    stats: EngineStats


class Pulse(msgspec.Struct, frozen=True, tag="pulse"):
    """Sent once a second, whatever the engine is doing."""

    step_age_s: float
    """Of the step that is being computed; 0 between two steps."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Answered by an `Answered` of the same number, between two steps."""

    number: int
    question: Question


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    number: int
    answer: Answer | None
    error: str | None = None
    """Why there is no answer."""


ToEngine: TypeAlias = AddRequest | AbortRequest | Ask
FromEngine: TypeAlias = Loading | Ready | CannotStart | News | Pulse | Answered


class Start(msgspec.Struct, frozen=True):
    """The first line of the process's standard input."""

    folder: Path
    """Holds the two sockets, `to_engine` and `from_engine`."""
    options: EngineOptions
    log_level: str
    log_format: LogFormat
    stuck_after_s: float
    """A step that takes longer is named in the log."""


def encode_start(start: Start) -> bytes:
    return msgspec.json.encode(start, enc_hook=str) + b"\n"


def decode_start(line: bytes) -> Start:
    return msgspec.json.decode(line, type=Start, dec_hook=lambda kind, value: kind(value))
