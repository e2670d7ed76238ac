"""What prompts cost in the cache as it is: the engine's own figures behind `context.cost_oracle.CostOracle`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from deeproot.runtime.context.cost_oracle import EditCost
from deeproot.runtime.context.tokenizer import TokenIds

_MILLION, _HOUR_S = 1_000_000, 3600.0


@dataclass(frozen=True, slots=True)
class Probed:
    """How much of some prompts is cached, without having used it."""

    prompt_tokens: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    """From the start of each."""
    tokens_per_second: float | None
    """How fast the engine computed prompts lately; None if it has not computed any."""


class Prober(Protocol):
    """Whoever can ask an engine: `LLM`, or `CacheClient` over HTTP."""

    def probe(self, prompts: Sequence[TokenIds]) -> Probed:
        """prompts: int32, shape [tokens] each. Changes nothing, recency included."""
        ...


@dataclass(frozen=True, slots=True)
class Tariff:
    """Dollars for computing tokens; None where there is no price. A price a token goes before one an hour.

    Raises ValueError for prices below 0.
    """

    dollars_per_hour: float | None = None
    """Of the machine."""
    dollars_per_million: float | None = None
    """Of computed prompt tokens."""

    def __post_init__(self) -> None:
        for name in ("dollars_per_hour", "dollars_per_million"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is {value}: give a price of 0 or more, or None")

    def dollars(self, num_tokens: int, seconds: float | None) -> float | None:
        if self.dollars_per_million is not None:
            return num_tokens * self.dollars_per_million / _MILLION
        if self.dollars_per_hour is None or seconds is None:
            return None
        return seconds * self.dollars_per_hour / _HOUR_S


def cost_of(probed: Probed, which: int, tariff: Tariff) -> EditCost:
    """Of sending a probed prompt now. Its last token is always computed, cached or not, to have logits."""
    size = probed.prompt_tokens[which]
    computed = size - min(probed.cached_tokens[which], max(size - 1, 0))
    seconds = None if probed.tokens_per_second is None else computed / probed.tokens_per_second
    return EditCost(computed, seconds, tariff.dollars(computed, seconds))


class EngineOracle:
    """A `CostOracle` that asks an engine what it holds, so that an edit before what is not cached anyway is free."""

    def __init__(self, prober: Prober, tariff: Tariff | None = None) -> None:
        self._prober = prober
        self._tariff = tariff or Tariff()

    def price(self, old_tokens: TokenIds, new_tokens: TokenIds) -> EditCost:
        """Cost of sending `new_tokens` now. What of `old_tokens` is cached, the engine knows better."""
        return cost_of(self._prober.probe([new_tokens]), 0, self._tariff)
