"""Sends asks as a load: closed, session by session, or open, at times that do not wait for answers."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Answer, Server


class Arrivals(StrEnum):
    """When asks are sent."""

    CLOSED = "closed"
    """A session's next one when its last is answered, and after its gap."""
    POISSON = "poisson"
    """At random times of a given rate."""
    RECORDED = "recorded"
    """At their own times, sped up by a factor."""


@dataclass(frozen=True, slots=True)
class Load:
    """How asks are sent. `concurrency`: sessions at a time, of a closed load. `keep_gaps`: wait between a session's asks as
    was recorded. `rate`: asks a second, of a Poisson load. `speed`: recorded seconds that pass in one. `seed`: of the
    Poisson times, which are the same for every server."""

    arrivals: Arrivals = Arrivals.CLOSED
    concurrency: int = 1
    keep_gaps: bool = False
    rate: float = 1.0
    speed: float = 1.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Round:
    """All answers of one server to all asks, in the asks' order, and how long that took."""

    server: str
    answers: tuple[Answer, ...]
    seconds: float


async def drive(server: Server, asks: Sequence[Ask], load: Load, done: Callable[[str], None]) -> Round:
    """Send all asks and wait for all answers; `done` is told of each."""
    origin = time.perf_counter()
    if load.arrivals is Arrivals.CLOSED:
        answers = await _closed(server, asks, load, origin, done)
    else:
        answers = await _open(server, asks, arrival_times(asks, load), origin, done)
    return Round(server.name, tuple(answers), time.perf_counter() - origin)


def arrival_times(asks: Sequence[Ask], load: Load) -> list[float]:
    """Seconds from the start at which each is sent, of an open load."""
    if load.arrivals is Arrivals.POISSON:
        gaps = np.random.default_rng(load.seed).exponential(1 / load.rate, len(asks))
        return [float(t) for t in np.cumsum(gaps)]
    first = min(ask.time_s for ask in asks)
    return [(ask.time_s - first) / load.speed for ask in asks]


async def _closed(
    server: Server, asks: Sequence[Ask], load: Load, origin: float, done: Callable[[str], None]
) -> list[Answer]:
    sessions: dict[str, list[int]] = {}
    for i, ask in enumerate(asks):
        sessions.setdefault(ask.session, []).append(i)
    answers: dict[int, Answer] = {}
    room = asyncio.Semaphore(load.concurrency)

    async def session(numbers: Sequence[int]) -> None:
        async with room:
            before: Ask | None = None
            for i in numbers:
                if before is not None and load.keep_gaps:
                    await asyncio.sleep(max(0.0, asks[i].time_s - before.time_s) / load.speed)
                answers[i] = await server.ask(asks[i], origin)
                before = asks[i]
                done(server.name)

    async with asyncio.TaskGroup() as group:
        for numbers in sessions.values():
            group.create_task(session(numbers))
    return [answers[i] for i in range(len(asks))]


async def _open(
    server: Server, asks: Sequence[Ask], times: Sequence[float], origin: float, done: Callable[[str], None]
) -> list[Answer]:
    async def one(ask: Ask, at: float) -> Answer:
        await asyncio.sleep(max(0.0, origin + at - time.perf_counter()))
        answer = await server.ask(ask, origin)
        done(server.name)
        return answer

    return list(await asyncio.gather(*(one(ask, at) for ask, at in zip(asks, times, strict=True))))
