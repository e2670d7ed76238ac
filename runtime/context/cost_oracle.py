"""What it costs to put one prompt in the place of another: the question that compaction and invalidation ask."""

from dataclasses import dataclass
from typing import Protocol

from deeproot.runtime.context.prefix_cost import Prices, common_prefix
from deeproot.runtime.context.tokenizer import TokenIds

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class EditCost:
    """Of the first call after an edit.

    `tokens_recomputed`: what no cache holds of the new prompt. `seconds` and `dollars` of computing it: None where the
    oracle does not know the rate or the price.
    """

    tokens_recomputed: int
    seconds: float | None
    dollars: float | None


class CostOracle(Protocol):
    """Prices an edit of a prompt, without changing anything, recency included."""

    def price(self, old_tokens: TokenIds, new_tokens: TokenIds) -> EditCost:
        """Cost of sending `new_tokens` after `old_tokens` was the last prompt sent; both int32, shape [tokens]."""


@dataclass(frozen=True, slots=True)
class TokenCountOracle:
    """Assumes a cache that holds the whole old prompt and nothing else. Knows no engine.

    `prices`: for dollars; `tokens_per_second`: a measured prefill rate, for seconds.
    """

    prices: Prices | None = None
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        if self.tokens_per_second is not None and self.tokens_per_second <= 0:
            raise ValueError(f"tokens_per_second is {self.tokens_per_second}; give a positive rate or None")

    def price(self, old_tokens: TokenIds, new_tokens: TokenIds) -> EditCost:
        new = int(new_tokens.size) - common_prefix(old_tokens, new_tokens)
        seconds = None if self.tokens_per_second is None else new / self.tokens_per_second
        dollars = (
            None if self.prices is None else new * self.prices.full * self.prices.write_premium / _MILLION
        )
        return EditCost(new, seconds, dollars)
