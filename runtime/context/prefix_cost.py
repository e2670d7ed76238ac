"""What a sequence of prompts costs in a prefix cache without limits: the best that any server can do with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deeproot.runtime.context.tokenizer import TokenIds

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million input tokens. `write_premium`: factor on tokens that are computed and cached."""

    full: float = 3.0
    cached: float = 0.30
    write_premium: float = 1.0


@dataclass(frozen=True, slots=True)
class PrefixCost:
    """Of all calls together."""

    total_tokens: int
    computed: int
    cached: int

    @property
    def hit_rate(self) -> float:
        """Cached share of all input tokens; 0 if there are none."""
        return self.cached / self.total_tokens if self.total_tokens else 0.0

    def dollars(self, prices: Prices) -> float:
        """What the input tokens cost."""
        computed = self.computed * prices.full * prices.write_premium
        return (computed + self.cached * prices.cached) / _MILLION


def common_prefix(one: TokenIds, other: TokenIds) -> int:
    """How many tokens two prompts share from the start."""
    size = min(one.size, other.size)
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if different.size else size


def prefix_cost(prompts: Sequence[TokenIds]) -> PrefixCost:
    """Cost of the prompts in their order. Each can reuse the longest prefix that any earlier one had."""
    cached = 0
    total = 0
    for i, prompt in enumerate(prompts):
        total += int(prompt.size)
        cached += max((common_prefix(prompt, earlier) for earlier in prompts[:i]), default=0)
    return PrefixCost(total, total - cached, cached)
