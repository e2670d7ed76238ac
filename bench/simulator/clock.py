"""Time that passes only when the simulation says so, and a model that takes time without computing anything."""

from dataclasses import dataclass

import numpy as np

from deeproot.engine.batch import ForwardBatch, Int32Array, Int64Array, Sampled


class Clock:
    """Seconds since the simulation began."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, slots=True)
class StepCost:
    """How long a step takes: made numbers, of the order of an 8B model on one GPU."""

    fixed_s: float = 0.008
    token_s: float = 4e-5
    """A token that is computed."""
    read_s: float = 2e-9
    """A pair of a computed token and one that it attends to."""

    def seconds(self, batch: ForwardBatch) -> float:
        extend = np.diff(batch.cu_seqlens_q).astype(np.int64)
        pairs = int((extend * (batch.seq_lens - extend // 2)).sum())
        return self.fixed_s + self.token_s * int(extend.sum()) + self.read_s * pairs


class Script:
    """What each request is answered with: request `i` is sent with the seed `i`."""

    def __init__(self) -> None:
        self._answers: dict[int, tuple[int, Int32Array]] = {}

    def set(self, seed: int, num_prompt: int, answer: Int32Array) -> None:
        self._answers[seed] = num_prompt, answer

    def drop(self, seed: int) -> None:
        del self._answers[seed]

    def tokens(self, seeds: np.ndarray, positions: Int64Array) -> Int32Array:
        """`[N]` the tokens that the requests write at these places of their sequences."""
        said = np.empty(len(seeds), dtype=np.int32)
        for i, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
            num_prompt, answer = self._answers[seed]
            said[i] = answer[position - num_prompt]
        return said


class CostRunner:
    """The scheduler's `Forward`: a step passes time and writes what the script has."""

    def __init__(self, clock: Clock, cost: StepCost, script: Script) -> None:
        self._clock = clock
        self._cost = cost
        self._script = script
        self.busy_s = 0.0

    def launch(self, batch: ForwardBatch) -> "Done":
        seconds = self._cost.seconds(batch)
        self._clock.now += seconds
        self.busy_s += seconds
        return Done(Sampled(self._script.tokens(batch.sampling.seeds, batch.sampling.positions)))


@dataclass(frozen=True, slots=True)
class Done:
    """A step that has been taken."""

    sampled: Sampled

    def result(self) -> Sampled:
        return self.sampled
