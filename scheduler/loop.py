"""The engine's thread: takes messages, steps the scheduler, hands out what it said."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from deeproot.engine.eviction import EvictionClass
from deeproot.scheduler.messages import AbortRequest, AddRequest, TokenOutput
from deeproot.scheduler.scheduler import Scheduler
from deeproot.scheduler.stats import EngineStats

Message = AddRequest | AbortRequest
Emit = Callable[[list[TokenOutput]], None]
T = TypeVar("T")


def take_stats(scheduler: Scheduler) -> EngineStats:
    order = scheduler.cache.order
    return EngineStats(
        num_running=len(scheduler.table),
        num_waiting=len(scheduler.arrivals.requests()),
        num_pages=scheduler.pool.num_pages,
        num_free_pages=scheduler.pool.num_free,
        num_cached_pages=scheduler.cache.num_pages,
        num_evictable_pages=scheduler.cache.num_evictable,
        num_scratch_pages=order.num_pages(EvictionClass.SCRATCH),
        num_leaf_pages=order.num_pages(EvictionClass.LEAF),
        num_trunk_pages=order.num_pages(EvictionClass.TRUNK),
        num_root_pages=order.num_pages(EvictionClass.ROOT),
        num_shared_pages=order.num_pages(EvictionClass.SHARED),
        num_leases=len(scheduler.cache.leases),
        leaf_hits=scheduler.claims.hits[EvictionClass.LEAF],
        trunk_hits=scheduler.claims.hits[EvictionClass.TRUNK],
        root_hits=scheduler.claims.hits[EvictionClass.ROOT],
        shared_hits=scheduler.claims.hits[EvictionClass.SHARED],
        page_size=scheduler.pool.page_size,
        counters=replace(scheduler.counters),
    )


class EngineLoop:
    """Owns a scheduler and runs it in whichever thread calls `run`.

    All other methods may be called from any thread. `emit` is called in the loop's thread, once a step at most, with
    that step's outputs in order.
    """

    def __init__(self, scheduler: Scheduler, emit: Emit) -> None:
        self._scheduler = scheduler
        self._emit = emit
        self._inbox: deque[Message] = deque()
        self._questions: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._stats = take_stats(scheduler)
        self._step_began: float | None = None
        """By `time.monotonic`; None between two steps."""
        scheduler.arrivals.on_compiled = self._wake_up

    def submit(self, message: Message) -> None:
        with self._wake:
            self._inbox.append(message)
            self._wake.notify()

    def inspect(self, question: Callable[[Scheduler], T]) -> "Future[T]":
        """Call `question` in the loop's thread between two steps; the future has its answer or its exception.

        Cancelled if the loop stops first.
        """
        future: Future[T] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question(self._scheduler))
            except Exception as error:  # the asker's
                future.set_exception(error)

        with self._wake:
            if self._stopping:
                future.cancel()
            else:
                self._questions.append((future, answer))
                self._wake.notify()
        return future

    def stats(self) -> EngineStats:
        """The state after the latest step; never waits for one."""
        return self._stats

    def step_age_s(self) -> float:
        """How long the step has been running that runs now; 0 between two steps."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def running_rids(self) -> list[str]:
        """The requests that run, or nearly: the loop goes on while they are looked at."""
        try:
            return [request.rid for request in self._scheduler.table.running()]
        except Exception:  # what is looked at has changed meanwhile
            return []

    def stop(self) -> None:
        """Let `run` return after the step in flight; requests that still run are aborted and reported."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def run(self) -> None:
        """Step until `stop`."""
        try:
            self._run()
        finally:
            with self._wake:
                self._stopping = True
                for future, _ in self._questions:
                    future.cancel()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            with self._wake:
                self._wake.wait_for(self._has_something_to_do)
                messages, questions = list(self._inbox), list(self._questions)
                self._inbox.clear()
                self._questions.clear()
                stopping = self._stopping
            self._step_began = time.monotonic()
            outputs = self._take(messages)
            for _, answer in questions:
                answer()
            outputs += self._abort_all() if stopping else self._scheduler.step()
            self._step_began = None
            self._stats = take_stats(self._scheduler)
            if outputs:
                self._emit(outputs)

    def _wake_up(self) -> None:
        with self._wake:
            self._wake.notify()

    def _has_something_to_do(self) -> bool:
        return bool(self._stopping or self._inbox or self._questions or self._scheduler.has_work)

    def _take(self, messages: list[Message]) -> list[TokenOutput]:
        outputs = []
        for message in messages:
            if isinstance(message, AddRequest):
                self._scheduler.add(message)
            else:
                aborted = self._scheduler.abort(message.rid)
                if aborted is not None:
                    outputs.append(aborted)
        return outputs

    def _abort_all(self) -> list[TokenOutput]:
        outputs = [self._scheduler.abort(request.rid) for request in self._scheduler.requests()]
        return [output for output in outputs if output is not None] + self._scheduler.drain()
