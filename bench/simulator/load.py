"""Who sends what and when: agents in sessions, a flood of single cold requests, a recorded trace.

A source is a generator. It yields when its next request comes and what that is, and is sent the time at which the
request was answered, so that an agent's next turn follows its last one. All are seeded.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from deeproot.bench.cachesim.call import Call as Prompted
from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.cachesim.made_runs import Spread
from deeproot.bench.cachesim.mooncake import calls_of_blocks, conversation
from deeproot.bench.cachesim.workloads import named_workload
from deeproot.engine.batch import Int32Array

_VOCABULARY = 150_000


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    kind: str
    time_s: float
    prompt: Int32Array
    answer: Int32Array
    session: str | None = None
    tenant: bytes = b""
    priority: int = 0


Source = Generator[Call, float, None]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Agents whose lengths have heavy tails. Tokens and seconds."""

    arrival_s: float = 1.5
    """Mean time between two sessions' starts, a Poisson process."""
    kinds: int = 8
    """Agents of a kind begin with the same root."""
    root_tokens: int = 1500
    task: Spread = field(default_factory=lambda: Spread(200, 0.8))
    turns: Spread = field(default_factory=lambda: Spread(10, 0.8))
    answer: Spread = field(default_factory=lambda: Spread(25, 0.7))
    output: Spread = field(default_factory=lambda: Spread(150, 1.2))
    gap_s: Spread = field(default_factory=lambda: Spread(2, 1.2))
    window: int = 16_000

    def sources(self, seed: int) -> Iterator[tuple[float, Source]]:
        """Without end: when each session begins, and it."""
        rng = np.random.default_rng(seed)
        roots = [made_tokens(rng, self.root_tokens) for _ in range(self.kinds)]
        now, number = 0.0, 0
        while True:
            own = np.random.default_rng((seed, number))
            yield now, self._session(own, roots[number % self.kinds], f"agent {number}", now)
            now += float(rng.exponential(self.arrival_s))
            number += 1

    def _session(self, rng: np.random.Generator, root: Int32Array, name: str, now: float) -> Source:
        history = np.concatenate([root, made_tokens(rng, self.task.count(rng))])
        for _ in range(self.turns.count(rng)):
            answer = made_tokens(rng, self.answer.count(rng))
            if len(history) + len(answer) > self.window:
                return
            ended = yield Call("agent", now, history, answer, session=name)
            output = made_tokens(rng, min(self.output.count(rng), 4000))
            history = np.concatenate([history, answer, output])
            now = ended + self.gap_s.draw(rng)


@dataclass(frozen=True, slots=True)
class Flood:
    """Single requests that share nothing with anybody."""

    arrival_s: float = 0.065
    prompt: Spread = field(default_factory=lambda: Spread(500, 1.0))
    answer: Spread = field(default_factory=lambda: Spread(25, 0.7))
    window: int = 16_000

    def sources(self, seed: int) -> Iterator[tuple[float, Source]]:
        rng = np.random.default_rng(seed)
        now = 0.0
        while True:
            now += float(rng.exponential(self.arrival_s))
            answer = made_tokens(rng, min(self.answer.count(rng), 500))
            prompt = made_tokens(rng, min(self.prompt.count(rng), self.window - 500))
            yield now, once(Call("cold", now, prompt, answer))


def recorded(most: int, speed: float) -> Iterator[tuple[float, Source]]:
    """Mooncake's conversation trace, so many times as fast as it was."""
    for call in calls_of_blocks(conversation(most)):
        time_s = call.time_s / speed
        answer = call.answer if len(call.answer) else np.zeros(1, dtype=np.int32)
        yield time_s, once(Call("recorded", time_s, call.prompt, answer))


def airline(sessions: int, arrival_s: float, seed: int) -> Iterator[tuple[float, Source]]:
    """Recorded dialogues of an agent with tools, which begin `arrival_s` apart in the mean; a call comes two seconds after
    the one before it was answered."""
    of_session: dict[str, list[Prompted]] = {}
    for call in named_workload("airline", Renderer(), seed, sessions):
        of_session.setdefault(call.session, []).append(call)
    rng, now = np.random.default_rng(seed), 0.0
    for calls in of_session.values():
        yield now, _dialogue(calls, now)
        now += float(rng.exponential(arrival_s))


def _dialogue(calls: Sequence[Prompted], now: float) -> Source:
    for call in calls:
        ended = yield Call("airline", now, call.prompt, call.answer, session=call.session)
        now = ended + 2.0


def once(call: Call) -> Source:
    yield call


def made_tokens(rng: np.random.Generator, n: int) -> Int32Array:
    """`[n]` ids that nothing else has."""
    return rng.integers(4, _VOCABULARY, n).astype(np.int32)
