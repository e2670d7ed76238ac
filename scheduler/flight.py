"""A step from its making until its tokens are booked, and what the scheduler asks of whoever computes it."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array, Sampled


class Pending(Protocol):
    """What a step that may still be running gives back."""

    def result(self) -> Sampled:
        """Wait for the step. Raises what the step failed with."""
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
    num_drafted: Int64Array | None = None
    """How many of each row's `extend` are drafts, its last; None: none at all."""

    @property
    def certain(self) -> Int64Array:
        """Of each row's `extend`, what is computed whatever becomes of drafts."""
        return self.extend if self.num_drafted is None else self.extend - self.num_drafted

    @property
    def num_logits(self) -> Int64Array:
        """Rows of logits of each of `sampling_rows`: one, and one for each of its drafts."""
        if self.num_drafted is None:
            return np.ones(len(self.sampling_rows), dtype=np.int64)
        return self.num_drafted[np.isin(self.rows, self.sampling_rows)] + 1


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched and whose tokens are not booked yet."""

    step: Step
    pending: Pending
    launched: float
    """When, by the scheduler's clock."""
    frees: list[Int32Array] = field(default_factory=list)
    """Pages that nobody needs any more but this step may read: they are free when it has landed."""

    def has(self, row: int) -> bool:
        return bool((self.step.rows == row).any())


@dataclass(frozen=True, slots=True)
class Failed:
    """A `Pending` of a step that could not even be launched."""

    error: Exception

    def result(self) -> Sampled:
        raise self.error


@dataclass(frozen=True, slots=True)
class Appended:
    """What a step's `N` sampled tokens became: `A` of them were appended to `R` rows."""

    rows: Int64Array
    """`[A]` the row of each."""
    last: Int64Array
    """`[R]` which of the `A` is the row's last."""
    stopped: NDArray[np.bool_]
    """`[R]` whether that is one of the row's stop ids."""
    full: NDArray[np.bool_]
    """`[R]` whether the row has reached its limit."""
    kept: NDArray[np.bool_] | None = None
    """`[N]` which were appended; None: all."""
