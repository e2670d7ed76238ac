"""What is measured: lengths by cached share, chunk sizes, batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

import numpy as np

from deeproot.bench.prefill.rig import Rig, Timed, random_ids
from deeproot.bench.report.progress import Advance

_LEAST = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """`lengths` in tokens; `shares` of a prompt that are cached, in percent; each point `rounds` times."""

    lengths: tuple[int, ...]
    shares: tuple[int, ...]
    chunks: tuple[int, ...]
    batches: tuple[int, ...]
    rounds: int
    seed: int

    @property
    def sweep_length(self) -> int:
        """At which chunks and batches are tried: long enough to have several chunks, short enough to be repeated."""
        return self.lengths[len(self.lengths) // 2]

    @property
    def num_points(self) -> int:
        return self.rounds * (len(self.lengths) * len(self.shares) + len(self.chunks) + len(self.batches))


class Sweep(Enum):
    """What a point is one of."""

    LENGTH = "length and cached share"
    CHUNK = "chunk size"
    BATCH = "batch"


@dataclass(slots=True)
class Point:
    """`batch` prompts of `length` tokens, `share` percent of them cached, in steps of `chunk` tokens. `samples`: one a round."""

    sweep: Sweep
    length: int
    share: int
    chunk: int
    batch: int
    samples: list[Timed] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How results call it."""
        kind = f"{self.batch} at once" if self.sweep is Sweep.BATCH else f"{self.share}% cached"
        return f"{self.length} tokens, {kind}, chunks of {self.chunk}"

    @property
    def cached(self) -> int:
        """Tokens of each prompt that were reused; the same in every round."""
        return self.samples[0].cached[0]

    @property
    def seconds(self) -> float:
        """Median until the last prompt's first token."""
        return median(timed.seconds for timed in self.samples)


def usual_lengths(window: int) -> tuple[int, ...]:
    """128, 256, … and the longest prompt that leaves room for a token."""
    made = []
    length = _LEAST
    while length < window - 1:
        made.append(length)
        length *= 2
    return (*made, window - 1)


def measure(rig: Rig, plan: Plan, advance: Advance) -> list[Point]:
    """All points, round by round, so that a slow minute of the machine does not hit one point alone."""
    chunk = rig.most_chunk
    by_length = {(n, s): Point(Sweep.LENGTH, n, s, chunk, 1) for n in plan.lengths for s in plan.shares}
    by_chunk = {c: Point(Sweep.CHUNK, plan.sweep_length, 0, c, 1) for c in plan.chunks}
    by_batch = {b: Point(Sweep.BATCH, plan.sweep_length, 0, chunk, b) for b in plan.batches}
    rng = np.random.default_rng(plan.seed)
    rig.run([random_ids(rng, min(plan.lengths), rig.config.vocab_size)])  # not counted
    for _ in range(plan.rounds):
        for length in plan.lengths:
            rig.clear()
            for share, timed in _by_share(rig, rng, length, plan.shares):
                by_length[length, share].samples.append(timed)
                advance(f"{length} tokens, {share}% cached")
        for size, point in by_chunk.items():
            rig.with_chunk(size)
            point.samples.append(rig.run([random_ids(rng, point.length, rig.config.vocab_size)]))
            advance(f"chunks of {size}")
        rig.with_chunk(chunk)
        for count, point in by_batch.items():
            rig.clear()
            prompts = [random_ids(rng, point.length, rig.config.vocab_size) for _ in range(count)]
            point.samples.append(rig.run(prompts))
            advance(f"{count} at once")
    return [*by_length.values(), *by_chunk.values(), *by_batch.values()]


def _by_share(
    rig: Rig, rng: np.random.Generator, length: int, shares: Sequence[int]
) -> Iterator[tuple[int, Timed]]:
    """A prompt that is new, and then others that begin as it does and go on with tokens of their own."""
    base = random_ids(rng, length, rig.config.vocab_size)
    cold = rig.run([base])
    if 0 in shares:
        yield 0, cold
    for share in shares:
        if share == 0:
            continue
        kept = length * share // 100
        other = random_ids(rng, length - kept, rig.config.vocab_size)
        other[:1] = (base[kept : kept + 1] + 1) % rig.config.vocab_size  # parts exactly there
        yield share, rig.run([np.concatenate((base[:kept], other))])
