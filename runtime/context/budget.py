"""How many tokens a working set may have, in all and by zone, and when it has to shrink."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from deeproot.runtime.context.segments import Zone

SHARES: Mapping[Zone, tuple[float, float]] = {
    Zone.ROOT: (0.10, 0.20),
    Zone.TRUNK: (0.50, 0.70),
    Zone.LEAF: (0.20, 0.30),
}
"""Shares of a working set that fits most tasks: from, to."""


class BudgetError(ValueError):
    """The working set cannot be made to fit. The message gives the numbers and what to change."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`total`: usable tokens of one call (M*), the answer not among them. `shares`: of each zone, from and to.

    Below `high` of the total nothing is taken away but by filters; at `high`, one batch brings it down to `low`.
    """

    total: int
    high: float = 0.80
    low: float = 0.50
    shares: Mapping[Zone, tuple[float, float]] = field(default_factory=lambda: SHARES)

    def __post_init__(self) -> None:
        if self.total < 1:
            raise BudgetError(f"budget.total is {self.total}; give the usable tokens of one call, at least 1")
        if not 0 < self.low < self.high <= 1:
            raise BudgetError(
                f"budget.low {self.low} and budget.high {self.high} must be 0 < low < high <= 1"
            )
        for zone in Zone:
            first, last = self.shares.get(zone, (0.0, 0.0))
            if not 0 <= first <= last <= 1 or last == 0:
                raise BudgetError(f"budget.shares of {zone} are {first} to {last}; give 0 <= from <= to <= 1")

    @property
    def high_tokens(self) -> int:
        """At this many tokens a batch compaction is due."""
        return int(self.total * self.high)

    @property
    def low_tokens(self) -> int:
        """A batch compaction ends at this many or fewer."""
        return int(self.total * self.low)

    def zone_limit(self, zone: Zone) -> int:
        """The most that a zone should hold, in tokens."""
        return int(self.total * self.shares[zone][1])

    def zone_target(self, zone: Zone) -> int:
        """The least that a zone typically holds, in tokens."""
        return int(self.total * self.shares[zone][0])

    def check_fixed(self, fixed: int) -> None:
        """Raise `BudgetError` if what can never be dropped reaches the high water mark by itself."""
        if fixed >= self.high_tokens:
            raise BudgetError(
                f"{fixed} tokens of policy, tools, task and reminder reach the high water mark"
                f" ({self.high_tokens} of {self.total}): no compaction can help; shorten them or raise the budget"
            )


def check_total(tokens: int, budget: int) -> None:
    """Raise `BudgetError` if a finished working set of `tokens` is over a `budget` of so many tokens."""
    if tokens > budget:
        raise BudgetError(
            f"the working set has {tokens} tokens for a budget of {budget}: what is left is pinned or newest;"
            " shorten the newest tool results, unpin something or raise the budget"
        )
