"""A step from its making until its tokens are booked, and what the scheduler asks of whoever computes it."""

from dataclasses import dataclass, field
from typing import Protocol

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array


class Pending(Protocol):
    """The tokens of a step that may still be running."""

    def result(self) -> Int32Array:
        """Wait for the step: its sampled ids, `[len(batch.logits_indices)]`. Raises what the step failed with."""
        ...


class Forward(Protocol):
    """The model side of a step."""

    def launch(self, batch: ForwardBatch) -> Pending:
        """Start to compute the batch's new tokens and to sample; may return before that is done.

        Steps run in the order in which they are launched. `batch.fed` speaks of the batch launched before this one.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What `schedule` decided: `rows[i]` computes `extend[i]` tokens."""

    rows: Int64Array
    extend: Int64Array
    sampling_rows: Int64Array
    batch: ForwardBatch


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched and whose tokens are not booked yet."""

    step: Step
    tokens: Pending
    frees: list[Int32Array] = field(default_factory=list)
    """Pages that nobody needs any more but this step may read: they are free when it has landed."""

    def has(self, row: int) -> bool:
        return bool((self.step.rows == row).any())


@dataclass(frozen=True, slots=True)
class Failed:
    """A `Pending` of a step that could not even be launched."""

    error: Exception

    def result(self) -> Int32Array:
        raise self.error
