"""Two ways to keep a status current, and which of them costs less."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from deeproot.runtime.context.prefix_cost import Prices


class Mode(StrEnum):
    """What becomes of the status of the call before."""

    REPLACE = "replace"
    """It goes: there is one status, at the very end. What the model answered to it is computed anew, since it stood behind."""
    APPEND = "append"
    """It stays where it was said, and a new one is appended when something changed. The prefix never changes; old ones are
    carried until a batch rewrites the trunk anyway."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a run. `status`, `reply`: tokens of a status and of a reply of the model. `changes`: share of calls before which
    the status changed, 0 to 1. `turns`: calls to come until the run ends or the next batch."""

    status: float
    reply: float
    changes: float
    turns: float


def dollars(mode: Mode, rates: Rates, prices: Prices) -> float:
    """What a status costs over the calls to come, in dollars.

    Replaced: each call computes the status, and the last reply, which else were cached. Appended: only what changed is
    computed, and each call carries what was appended before it.
    """
    n, computed = rates.turns, prices.full * prices.write_premium
    if mode is Mode.REPLACE:
        return n * (rates.status * computed + rates.reply * (computed - prices.cached)) / 1e6
    added = n * rates.changes * rates.status
    return (added * computed + added * prices.cached * max(0.0, n - 1) / 2) / 1e6


def cheaper_mode(rates: Rates, prices: Prices) -> Mode:
    """Replacing pays for a large status in a long run; appending for a small one, one that seldom changes, or long replies."""
    replaced, appended = (dollars(mode, rates, prices) for mode in (Mode.REPLACE, Mode.APPEND))
    return Mode.REPLACE if replaced < appended else Mode.APPEND


@dataclass(frozen=True, slots=True)
class Outlook:
    """For a status that chooses its mode itself: `count`, tokens of a text (`SegmentTokenizer.count`), and what is expected."""

    count: Callable[[str], int]
    turns: float = 30
    prices: Prices = field(default_factory=Prices)
