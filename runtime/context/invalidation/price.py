"""What it costs to rewrite the prompt now, against carrying what no longer holds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from deeproot.runtime.context.control_text import EMPTY
from deeproot.runtime.context.cost_oracle import CostOracle
from deeproot.runtime.context.prefix_cost import Prices
from deeproot.runtime.context.tokenizer import TokenIds

_MILLION = 1_000_000
_CUTS = 16
"""Places from which on the prompt may be rewritten, of which each is priced."""


class Treatment(StrEnum):
    """What becomes of an observation that no longer holds."""

    TAIL = "tombstone at the tail"
    """It stays, and a line at the end says that it does not hold: the prefix stays in the cache."""
    IN_PLACE = "tombstone in place"
    """A line stands in its place: all behind it is computed anew."""
    EVICT = "evicted"
    """It goes, and the call that asked for it: all behind it is computed anew."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """`turns_left`: calls that this run is expected to make yet, the next one included.

    `misread`: how likely, per call, the model acts on a stale text although the tail says that it is stale;
    `misread_tokens`: what that wastes, in tokens at full price. Neither is known until it is measured for the model at
    hand; with 0, tokens alone decide.
    """

    turns_left: float = 20.0
    misread: float = 0.0
    misread_tokens: float = 0.0

    def __post_init__(self) -> None:
        if self.turns_left < 1:
            raise ValueError(f"turns_left is {self.turns_left}; give at least 1, the next call")
        if not 0 <= self.misread <= 1 or self.misread_tokens < 0:
            raise ValueError(
                f"misread is {self.misread}, misread_tokens {self.misread_tokens}; give 0 to 1, and no less than 0"
            )


@dataclass(frozen=True, slots=True)
class Option:
    """One way to go on. `prompt`: tokens of the next call; `computed`: those of them that no cache holds.

    `carried`: stale observations that every call goes on showing.
    """

    prompt: int
    computed: int
    carried: int = 0

    def dollars(self, prices: Prices, stakes: Stakes) -> float:
        """Of all calls to come, as far as the options differ: later calls read this prompt from the cache."""
        once = self.computed * (prices.full * prices.write_premium - prices.cached)
        each = self.prompt * prices.cached
        risk = self.carried * stakes.misread * stakes.misread_tokens * prices.full
        return (once + stakes.turns_left * (each + risk)) / _MILLION


def break_even_turns(rewrite: Option, keep: Option, prices: Prices) -> float:
    """From how many calls on, the next one included, rewriting the prompt costs less than keeping it as it is.

    0 if it never costs more; infinity if it saves no tokens. Risk is left out.
    """
    extra = (rewrite.computed - keep.computed) * (prices.full * prices.write_premium - prices.cached)
    saved = (keep.prompt - rewrite.prompt) * prices.cached
    if extra <= 0 and saved >= 0:
        return 0.0
    return extra / saved if saved > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class Invalid:
    """An observation to be treated. `spans`: token ranges that rewriting takes out; `instead`: what it puts there.

    `rewrite`: what rewriting would be; None where the observation may only be spoken of at the tail. `tail`: ids of the
    line at the tail.
    """

    seq: int
    spans: tuple[tuple[int, int], ...]
    rewrite: Treatment | None
    instead: TokenIds
    tail: TokenIds

    @property
    def start(self) -> int:
        return min(start for start, _ in self.spans)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest way found. `option` against `keep`, which speaks of all of them at the tail."""

    treatments: dict[int, Treatment]
    option: Option
    keep: Option


def choose(
    token_ids: TokenIds,
    invalid: Sequence[Invalid],
    *,
    oracle: CostOracle,
    prices: Prices,
    stakes: Stakes,
    cached: int | None = None,
) -> Choice:
    """Tail, in place or eviction for each, by what all calls to come will cost.

    Behind the first token that changes nothing is in the cache, so whatever stands there is rewritten as well. Up to 16
    places for that first change are priced. `token_ids`: int32, shape [tokens], the prompt as it would be without;
    `cached`: how many of its first tokens the server still holds (None: all).
    """
    old = token_ids if cached is None else token_ids[:cached]
    ordered = sorted(invalid, key=lambda one: one.start)
    movable = [one for one in ordered if one.rewrite is not None]
    starts = sorted({one.start for one in movable})
    step = max(1, -(-len(starts) // _CUTS))
    best: Choice | None = None
    keep: Option | None = None
    for cut in [None, *starts[::step]]:
        rewritten = [] if cut is None else [one for one in movable if one.start >= cut]
        gone = {one.seq for one in rewritten}
        told = [one for one in ordered if one.seq not in gone]
        new = edited(token_ids, rewritten, [one.tail for one in told])
        option = Option(int(new.size), oracle.price(old, new).tokens_recomputed, len(told))
        keep = keep or option
        treatments = {
            one.seq: (one.rewrite or Treatment.TAIL) if one.seq in gone else Treatment.TAIL for one in ordered
        }
        if best is None or option.dollars(prices, stakes) < best.option.dollars(prices, stakes):
            best = Choice(treatments, option, keep)
    assert best is not None
    return best


def edited(token_ids: TokenIds, rewritten: Iterable[Invalid], tail: Sequence[TokenIds]) -> TokenIds:
    """The prompt with these observations taken out or replaced, and lines added at its end."""
    pieces: list[TokenIds] = []
    at = 0
    for start, end, instead in _cuts(rewritten):
        if start >= at:
            pieces += [token_ids[at:start], instead]
        at = max(at, end)
    return np.concatenate([*pieces, token_ids[at:], *tail])


def _cuts(rewritten: Iterable[Invalid]) -> list[tuple[int, int, TokenIds]]:
    """Ranges to take out, ascending, and what stands there instead: of several ranges at the first."""
    cuts = []
    for one in rewritten:
        for i, (start, end) in enumerate(sorted(one.spans)):
            cuts.append((start, end, one.instead if i == 0 else EMPTY))
    return sorted(cuts, key=lambda cut: cut[:2])
