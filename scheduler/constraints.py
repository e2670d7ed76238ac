"""Grammars of running requests, kept up to date beside the engine's thread.

Compiling takes from a fraction of a millisecond to a second; what a token changes, some microseconds to some
milliseconds for a batch. Both run in threads while the engine computes: a request joins the queue when its grammar is
there, and the masks of a step are only waited for where its tokens are sampled.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3

from deeproot.engine.batch import Int32Array
from deeproot.engine.grammar import GrammarBackend, GrammarError, mask_width

_MAX_COMPILED = 256
"""Grammars that are kept for requests to come, the latest used ones."""
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
    """Why the grammar cannot go on; the mask allows nothing sensible then. Valid once `pending` is done."""
    pending: "Future[None] | None" = field(default=None, repr=False)


class Constraints:
    """Compiles grammars and follows outputs in threads of its own. Its methods are for one thread, the engine's."""

    def __init__(self, backend: GrammarBackend[Any]) -> None:
        self._backend = backend
        self._width = mask_width(backend.vocab_size)
        self._compiled: OrderedDict[bytes, Future[_Compiled]] = OrderedDict()
        self._compilers = ThreadPoolExecutor(_COMPILING_THREADS, thread_name_prefix="deeproot-grammar")
        # One thread: what it is given is done in order, and the backend spreads a batch over threads of its own.
        self._follower = ThreadPoolExecutor(1, thread_name_prefix="deeproot-masks")

    def compile(self, grammar: str, on_done: Callable[[], None]) -> "PendingConstraint":
        """Start compiling, or find it compiled. `on_done` is called from some thread, or at once."""
        key = blake3(grammar.encode("utf-8", "surrogatepass")).digest()
        future = self._compiled.get(key)
        if future is None:
            future = self._compiled[key] = self._compilers.submit(self._compile, grammar)
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        future.add_done_callback(lambda _: on_done())
        return PendingConstraint(self._backend, future)

    def advance(self, constraints: Sequence[Constraint], token_ids: Sequence[int]) -> None:
        """Begin to work out what may follow each request's newest token."""
        pending = self._follower.submit(self._advance, list(constraints), list(token_ids))
        for constraint in constraints:
            constraint.pending = pending

    def masks(self, constraints: Sequence[Constraint]) -> Int32Array:
        """`[n, width]` of what each request may get next, when that is known."""
        for constraint in constraints:
            if constraint.pending is not None:
                constraint.pending.result()
        return np.stack([constraint.mask for constraint in constraints])

    def close(self) -> None:
        """End the threads after what they are doing."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._follower.shutdown(wait=False, cancel_futures=True)

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
        self._backend.accept(matchers, token_ids)
        masks = np.zeros((len(constraints), self._width), dtype=np.int32)
        self._backend.fill(matchers, masks)
        for constraint, matcher, mask in zip(constraints, matchers, masks, strict=True):
            constraint.mask, constraint.error = mask, self._backend.error(matcher)


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
