"""What a client asks of whatever carries its messages to an engine.

`process_transport.ProcessTransport` runs the engine in a process of its own, which is what servers do;
`engine_thread.ThreadTransport` in a thread of this one.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol, TypeVar

from deeproot.runtime.engine_messages import EngineInfo
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.questions import Answer, Question
from deeproot.scheduler.stats import EngineStats

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class EngineEvents:
    """What a transport tells, each from whatever thread it likes, but one at a time."""

    on_up: Callable[[EngineInfo], None]
    """Requests are taken from now on; again after each `on_down` that was mended."""
    on_outputs: Callable[[list[TokenOutput]], None]
    """One step's outputs, in order."""
    on_down: Callable[[str], None]
    """The engine and all its requests are gone; why, as a sentence for the user."""
    on_cannot_start: Callable[[str], None]
    """There was no engine and there will be none; why, in one line."""


class EngineTransport(Protocol):
    """Carries messages to an engine, and its news back.

    Contract: every `AddRequest` is answered by any number of `TokenOutput`s, in order, of which exactly the last has
    a `finish_reason`, whether the request runs to its end, fails or is aborted; or by an `on_down`.
    """

    def start(self, events: EngineEvents) -> None:
        """Begin; returns at once. Called in the event loop in which the client lives."""

    def submit(self, message: AddRequest | AbortRequest) -> None:
        """Send a message; returns at once. May be called from any thread."""

    def ask(self, question: Question) -> "Future[Answer]":
        """Send a question, which is answered between two steps; returns at once. May be called from any thread.

        The future is cancelled, or has EngineUnavailable, if the engine ends first.
        """
        ...

    def stats(self) -> EngineStats | None:
        """The engine's newest figures; None while there is no engine."""
        ...

    def step_age_s(self) -> float:
        """How long the step that is being computed has been running, as far as it is known; 0 between two steps."""
        ...

    def silence_s(self) -> float:
        """For how long the engine has given no sign of life, though it should have."""
        ...

    def close(self, timeout: float | None) -> bool:
        """Stop the engine; True if it has stopped within `timeout` seconds (None: however long it takes)."""
        ...
