"""Grammars of running requests, kept up to date beside the engine's thread.

Compiling takes from a fraction of a millisecond to a second; what a token changes, some microseconds to some
milliseconds for a batch. Both run in threads while the engine computes: a request joins the queue when its grammar is
there, and the masks of a step are only waited for where its tokens are sampled.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from deeproot.engine.batch import Int32Array, Int64Array, TokenMask
from deeproot.engine.grammar import GrammarBackend, GrammarError, mask_width
from deeproot.scheduler.messages import TokenOutput

logger = logging.getLogger(__name__)

_COMPILING_THREADS = 2


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A grammar before its first token; shared by requests and never advanced."""

    matcher: Any
    mask: Int32Array


@dataclass(slots=True, eq=False)
class Constraint:
    """Where one request's output stands in its grammar. Changed by the threads of its `Constraints` only."""

    matcher: Any
    mask: Int32Array
    """`[width]` what may come next. Valid once `pending` is done."""
    error: str | None = None
    """Why the grammar cannot go on; the mask allows everything then. Valid once `pending` is done."""
    pending: "Future[None] | None" = field(default=None, repr=False)


class Constraints:
    """Compiles grammars and follows outputs in threads of its own. Its methods are for one thread, the engine's."""

    def __init__(self, backend: GrammarBackend[Any], max_compiled: int = 256) -> None:
        """`max_compiled`: grammars that are kept for requests to come, the latest used ones."""
        self._backend = backend
        self._max_compiled = max_compiled
        self._width = mask_width(backend.vocab_size)
        self._compiled: OrderedDict[bytes, Future[_Compiled]] = OrderedDict()
        self._compilers = ThreadPoolExecutor(_COMPILING_THREADS, thread_name_prefix="deeproot-grammar")
        # One thread: what it is given is done in order, and the backend spreads a batch over threads of its own.
        self._follower = ThreadPoolExecutor(1, thread_name_prefix="deeproot-masks")

    def compile(self, grammar: str, on_done: Callable[[], None]) -> "PendingConstraint":
        """Start compiling, or find it compiled. `on_done` is called from some thread, or at once."""
        key = sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        future = self._compiled.get(key)
        if future is None:
            future = self._compiled[key] = self._compilers.submit(self._compile, grammar)
            if len(self._compiled) > self._max_compiled:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        future.add_done_callback(lambda _: on_done())
        return PendingConstraint(self._backend, future)

    def advance(self, constraints: Sequence[Constraint], token_ids: Sequence[int]) -> None:
        """Begin to work out what may follow each request's newest token."""
        pending = self._follower.submit(self._advance, list(constraints), list(token_ids))
        for constraint in constraints:
            constraint.pending = pending

    def follow(
        self, constraints: Mapping[int, Constraint], rows: Int64Array, outputs: Sequence[TokenOutput]
    ) -> None:
        """`advance` those of `constraints`, by row, whose requests go on: `outputs[i]` is the news of `rows[i]`."""
        going = [
            (constraints[row], output.token_id)
            for row, output in zip(rows.tolist(), outputs, strict=True)
            if row in constraints and output.finish_reason is None and output.token_id is not None
        ]
        if going:
            self.advance(*zip(*going, strict=True))

    def _compile(self, grammar: str) -> _Compiled:
        matcher = self._backend.compile(grammar)
        masks = np.zeros((1, self._width), dtype=np.int32)
        first = self._backend.fork(matcher)
        self._backend.fill([first], masks)
        error = self._backend.error(first)
        if error is not None:
            raise GrammarError(error)
        return _Compiled(matcher, masks[0])

    def _advance(self, constraints: list[Constraint], token_ids: list[int]) -> None:
        matchers = [constraint.matcher for constraint in constraints]
        masks = np.zeros((len(constraints), self._width), dtype=np.int32)
        fault = None
        try:
            self._backend.accept(matchers, token_ids)
            self._backend.fill(matchers, masks)
        except Exception as error:  # of the library's: requests without a grammar must not suffer from it
            logger.exception("masks could not be computed")
            fault = f"{type(error).__name__}: {error}"
        for constraint, matcher, mask in zip(constraints, matchers, masks, strict=True):
            constraint.error = fault or self._backend.error(matcher)
            # What has failed ends when the step is booked; until then its row must be one that can be sampled.
            constraint.mask = mask if constraint.error is None else mask | -1


@dataclass(frozen=True, slots=True)
class ConstraintMask:
    """See `PendingMask`: what the rows of a step may get that have a constraint."""

    rows: Int64Array
    """`[M]` of the step's rows of logits."""
    constraints: Sequence[Constraint]
    """`[M]`"""

    def result(self) -> TokenMask:
        """Wait until the newest token of each is followed."""
        for constraint in self.constraints:
            if constraint.pending is not None:
                constraint.pending.result()
        return TokenMask(self.rows, np.stack([constraint.mask for constraint in self.constraints]))


def mask_of(constraints: Mapping[int, Constraint], rows: Int64Array) -> ConstraintMask | None:
    """The mask of logits rows that belong to `rows` of the running table; None if none of these has a constraint."""
    found = [(i, constraints[row]) for i, row in enumerate(rows.tolist()) if row in constraints]
    if not found:
        return None
    places, held = zip(*found, strict=True)
    return ConstraintMask(np.array(places, dtype=np.int64), held)


def errors_of(constraints: Mapping[int, Constraint], rows: Int64Array) -> dict[int, str]:
    """Which of `rows`, by index, cannot be constrained any further, and why; their masks have been waited for."""
    found = ((i, constraints.get(row)) for i, row in enumerate(rows.tolist()))
    return {
        i: f"the output's form cannot be kept: {one.error}"
        for i, one in found
        if one is not None and one.error is not None
    }


@dataclass(frozen=True, slots=True)
class PendingConstraint:
    """A grammar that is being compiled for one request."""

    backend: GrammarBackend[Any]
    compiled: "Future[_Compiled]"

    @property
    def done(self) -> bool:
        return self.compiled.done()

    def take(self) -> Constraint:
        """The request's own constraint, once `done`. Raises GrammarError if the grammar cannot be used."""
        compiled = self.compiled.result()
        return Constraint(self.backend.fork(compiled.matcher), compiled.mask)
