"""M*: how much of a window is usable, and how sure a share is."""

from collections.abc import Mapping
from math import sqrt

_Z = 1.96


def wilson(passed: int, total: int) -> tuple[float, float]:
    """Where a share lies with 95%. Raises ValueError for no trials."""
    if not 0 <= passed <= total or total < 1:
        raise ValueError(f"{passed} of {total} is no share")
    share = passed / total
    middle = (share + _Z**2 / (2 * total)) / (1 + _Z**2 / total)
    reach = _Z / (1 + _Z**2 / total) * sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    # Rounding must not leave the share itself outside.
    return min(max(0.0, middle - reach), share), max(min(1.0, middle + reach), share)


def largest_usable(share_at: Mapping[int, float], threshold: float) -> int | None:
    """The largest length at which, and at every shorter one, the share is at least `threshold`; None if at none."""
    best = None
    for length in sorted(share_at):
        if share_at[length] < threshold:
            break
        best = length
    return best


def smallest_sufficient(share_at: Mapping[int, float], wanted: float) -> int | None:
    """The smallest budget from which on every budget gives at least `wanted`; None if the largest does not."""
    best = None
    for budget in sorted(share_at, reverse=True):
        if share_at[budget] < wanted:
            break
        best = budget
    return best
