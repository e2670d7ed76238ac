"""Limits of one tenant: requests at a time, requests a minute, tokens a minute. Time is monotonic: clocks may jump."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from deeproot.runtime.options import LimitOptions
from deeproot.runtime.server.errors import ApiError
from deeproot.scheduler.messages import Usage

_MINUTE_S = 60.0


class _Allowance:
    """So much a minute, of which as much can be saved up. What is taken may exceed it: the rest is a debt."""

    def __init__(self, a_minute: int, now: float) -> None:
        self._rate = a_minute / _MINUTE_S
        self._most = float(a_minute)
        self._left = self._most
        self._at = now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` is there; 0 if it is."""
        self._fill(now)
        return max(0.0, (min(amount, self._most) - self._left) / self._rate)

    def take(self, amount: float, now: float) -> None:
        self._fill(now)
        self._left -= amount

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._left >= self._most

    def _fill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self._rate)
        self._at = now


class _Account:
    """One tenant's."""

    def __init__(self, options: LimitOptions, now: float) -> None:
        self.num_requests = 0
        """In flight."""
        self.requests = _allowance(options.requests_per_minute, now)
        self.tokens = _allowance(options.tokens_per_minute, now)

    def is_idle(self, now: float) -> bool:
        allowances = [one for one in (self.requests, self.tokens) if one is not None]
        return not self.num_requests and all(one.is_full(now) for one in allowances)


class TenantLimits:
    """Lets requests in or raises a 429 that says when to come again. For the event loop only."""

    def __init__(self, options: LimitOptions, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds that never go back."""
        self._options = options
        self._clock = clock
        self._accounts: dict[bytes, _Account] = {}

    def check(self, tenant: bytes) -> None:
        """Raise ApiError (429) if a request of this tenant would not be let in now."""
        account, options, now = self._account(tenant), self._options, self._clock()
        if options.concurrent_requests is not None and account.num_requests >= options.concurrent_requests:
            raise _too_many(
                f"{account.num_requests} requests of this key are in flight, and at most "
                f"{options.concurrent_requests} are let in at a time: wait for one to end.",
                1.0,
            )
        if account.requests is not None and (wait := account.requests.wait_s(1, now)):
            raise _too_many(
                f"This key has used its {options.requests_per_minute} requests a minute: try again in "
                f"{math.ceil(wait)} s.",
                wait,
            )
        if account.tokens is not None and (wait := account.tokens.wait_s(1, now)):
            raise _too_many(
                f"This key has used its {options.tokens_per_minute} tokens a minute: try again in "
                f"{math.ceil(wait)} s.",
                wait,
            )

    @contextlib.contextmanager
    def entered(self, tenant: bytes) -> Iterator[None]:
        """A request is in flight meanwhile. Raises as `check`."""
        self.check(tenant)
        account = self._account(tenant)
        account.num_requests += 1
        if account.requests is not None:
            account.requests.take(1, self._clock())
        try:
            yield
        finally:
            account.num_requests -= 1

    def spend(self, tenant: bytes, usage: Usage) -> None:
        """Count what a request of the engine has cost: tokens that were computed, cached ones are free."""
        account = self._account(tenant)
        if account.tokens is not None:
            account.tokens.take(usage.computed + usage.output, self._clock())

    def _account(self, tenant: bytes) -> _Account:
        if tenant not in self._accounts:
            now = self._clock()
            self._accounts = {t: one for t, one in self._accounts.items() if not one.is_idle(now)}
            self._accounts[tenant] = _Account(self._options, now)
        return self._accounts[tenant]


def _allowance(a_minute: int | None, now: float) -> _Allowance | None:
    return None if a_minute is None else _Allowance(a_minute, now)


def _too_many(message: str, wait_s: float) -> ApiError:
    return ApiError(
        429, message, code="rate_limit_exceeded", headers={"Retry-After": str(max(1, math.ceil(wait_s)))}
    )
