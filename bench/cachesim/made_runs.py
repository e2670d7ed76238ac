"""Made-up runs of agents, for loads of a size that no record has. The same seed gives the same runs.

Sizes and times are log-normal, which is how both are spread in served traces: `Spread(median, sigma)` has half of its
values below the median, and two thirds of them between median / e^sigma and median * e^sigma.
"""

from dataclasses import dataclass, field

import numpy as np

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import usual_marks
from deeproot.runtime.context.tokenizer import TokenIds

_VOCABULARY = 150_000


@dataclass(frozen=True, slots=True)
class Spread:
    """A log-normal distribution."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        if self.median <= 0 or self.sigma < 0:
            raise ValueError(f"median {self.median} must be over 0 and sigma {self.sigma} not below")

    def draw(self, rng: np.random.Generator) -> float:
        return float(rng.lognormal(np.log(self.median), self.sigma))

    def count(self, rng: np.random.Generator) -> int:
        """A whole number of at least 1."""
        return max(1, round(self.draw(rng)))


@dataclass(frozen=True, slots=True)
class AgentShape:
    """What a fleet of agents does. Tokens, seconds, and shares from 0 to 1.

    Sessions begin as a Poisson process. Each turn is a call, its answer, a gap in which a tool runs, and the tool's output,
    which is appended. A fork is a helper that starts from its parent's whole history, does some turns and is thrown away
    but for its last answer, while the parent waits. At `window` a compaction puts a summary in the place of everything
    between the root and the newest turns.
    """

    sessions: int = 20
    arrival_s: float = 30.0
    """Mean time between two sessions' starts."""
    root_tokens: int = 3000
    """Tools and rules, the same for all."""
    task: Spread = field(default_factory=lambda: Spread(200, 0.6))
    turns: Spread = field(default_factory=lambda: Spread(25, 0.5))
    answer: Spread = field(default_factory=lambda: Spread(120, 0.7))
    output: Spread = field(default_factory=lambda: Spread(400, 1.1))
    gap_s: Spread = field(default_factory=lambda: Spread(5, 1.2))
    fork_share: float = 0.03
    """Of the turns of a session itself that start a helper."""
    fork_turns: Spread = field(default_factory=lambda: Spread(5, 0.5))
    window: int = 32_000
    keep_turns: int = 4
    summary: Spread = field(default_factory=lambda: Spread(800, 0.3))

    def __post_init__(self) -> None:
        for name in ("sessions", "root_tokens", "window", "keep_turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")
        if not 0 <= self.fork_share <= 1:
            raise ValueError(f"fork_share is {self.fork_share}; give 0 to 1")
        if self.arrival_s < 0:
            raise ValueError(f"arrival_s is {self.arrival_s}; give 0 or more")


def made_runs(shape: AgentShape, seed: int) -> list[Call]:
    """Calls of all sessions in the order of their times."""
    rng = np.random.default_rng(seed)
    root = _words(rng, shape.root_tokens)
    made: list[Call] = []
    start = 0.0
    for i in range(shape.sessions):
        start += float(rng.exponential(shape.arrival_s)) if shape.arrival_s else 0.0
        session = _Session(shape, rng, f"session {i}", [root, _words(rng, shape.task.count(rng))], start)
        session.run(shape.turns.count(rng), forks=True)
        made += session.calls
    return sorted(made, key=lambda call: call.time_s)


class _Session:
    """One agent's history as parts, and the calls that it made."""

    def __init__(
        self, shape: AgentShape, rng: np.random.Generator, name: str, history: list[TokenIds], now: float
    ) -> None:
        self._shape = shape
        self._rng = rng
        self._name = name
        self._history = history
        self._now = now
        self.calls: list[Call] = []

    def run(self, turns: int, *, forks: bool) -> None:
        for turn in range(turns):
            if sum(part.size for part in self._history) > self._shape.window:
                self._compact()
            self._call()
            if forks and self._rng.random() < self._shape.fork_share:
                self._fork(turn)
            self._now += self._shape.gap_s.draw(self._rng)
            self._history.append(_words(self._rng, self._shape.output.count(self._rng)))

    def _call(self) -> None:
        answer = _words(self._rng, self._shape.answer.count(self._rng))
        ends = tuple(np.cumsum([part.size for part in self._history]).tolist())
        prompt = np.concatenate(self._history)
        self.calls.append(Call(self._name, self._now, prompt, answer, ends, usual_marks(ends)))
        self._history.append(answer)

    def _fork(self, turn: int) -> None:
        history = [*self._history, _words(self._rng, self._shape.task.count(self._rng))]
        helper = _Session(self._shape, self._rng, f"{self._name} helper {turn}", history, self._now)
        helper.run(self._shape.fork_turns.count(self._rng), forks=False)
        self.calls += helper.calls
        self._now = helper._now
        self._history.append(helper.calls[-1].answer)

    def _compact(self) -> None:
        """Root and task stay as they are; so do the newest turns, an answer and an output each."""
        summary = _words(self._rng, self._shape.summary.count(self._rng))
        newest = self._history[2:][-2 * self._shape.keep_turns :]
        self._history = [*self._history[:2], summary, *newest]


def _words(rng: np.random.Generator, count: int) -> TokenIds:
    return rng.integers(0, _VOCABULARY, count).astype(np.int32)
