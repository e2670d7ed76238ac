"""The accounts of tenants, by a clock that the test turns."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.options import LimitOptions
from deeproot.runtime.server.errors import ApiError
from deeproot.runtime.server.limits import TenantLimits
from deeproot.scheduler.messages import Usage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def used(computed: int, output: int = 0, cached: int = 0) -> Usage:
    return Usage(prompt=computed + cached, cached=cached, computed=computed, output=output)


def refusal(limits: TenantLimits, tenant: bytes = b"a") -> ApiError:
    with pytest.raises(ApiError) as caught:
        limits.check(tenant)
    assert caught.value.status == 429
    return caught.value


def test_requests_at_a_time() -> None:
    limits = TenantLimits(LimitOptions(concurrent_requests=2))
    with limits.entered(b"a"):
        limits.check(b"a")
        with limits.entered(b"a"):
            assert "2 requests of this key are in flight" in refusal(limits).message
            limits.check(b"b")
        limits.check(b"a")
    with pytest.raises(ZeroDivisionError), limits.entered(b"a"):
        raise ZeroDivisionError
    with limits.entered(b"a"), limits.entered(b"a"):
        refusal(limits)


def test_requests_a_minute_come_back_one_by_one() -> None:
    clock = Clock()
    limits = TenantLimits(LimitOptions(requests_per_minute=6), clock)
    for _ in range(6):
        with limits.entered(b"a"):
            pass
    assert refusal(limits).headers["Retry-After"] == "10"
    clock.now += 10
    with limits.entered(b"a"):
        pass
    refusal(limits)
    limits.check(b"b")


def test_tokens_a_minute_are_a_debt_that_time_pays() -> None:
    clock = Clock()
    limits = TenantLimits(LimitOptions(tokens_per_minute=600), clock)
    limits.check(b"a")
    limits.spend(b"a", used(computed=1000, output=199, cached=10**6))  # cached tokens are free
    assert refusal(limits).headers["Retry-After"] == "60"  # 599 owed, and 1 to begin with
    clock.now += 59
    refusal(limits)
    clock.now += 1.001
    limits.check(b"a")


def test_nothing_is_remembered_of_those_who_have_paid() -> None:
    clock = Clock()
    limits = TenantLimits(LimitOptions(tokens_per_minute=600), clock)
    for i in range(100):
        limits.check(str(i).encode())
    assert len(limits._accounts) <= 2
    limits.spend(b"debtor", used(computed=6000))
    for i in range(100):
        limits.check(str(i).encode())
    refusal(limits, b"debtor")
    clock.now += 10_000
    limits.check(b"new")
    assert len(limits._accounts) == 1


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0, 30), st.integers(1, 400)), max_size=40),
    a_minute=st.integers(10, 500),
)
def test_no_more_than_the_limit_and_what_was_saved_up(steps: list[tuple[float, int]], a_minute: int) -> None:
    """Whatever comes when: all that was let in is at most a minute's savings, what time brought, and one debt."""
    clock = Clock()
    limits = TenantLimits(LimitOptions(tokens_per_minute=a_minute), clock)
    start, spent, largest = clock.now, 0, 0
    for pause, tokens in steps:
        clock.now += pause
        try:
            limits.check(b"a")
        except ApiError as error:
            wait = int(error.headers["Retry-After"])
            # Who comes back when told is let in.
            assert wait >= 1
            later = Clock()
            later.now = clock.now
            clock.now += wait
            limits.check(b"a")
        limits.spend(b"a", used(computed=tokens))
        spent, largest = spent + tokens, max(largest, tokens)
        assert spent <= a_minute + (clock.now - start) * a_minute / 60 + largest + math.ulp(spent)
