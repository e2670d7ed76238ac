"""The price of an edit, against a plain count."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.context.cost_oracle import EditCost, TokenCountOracle
from deeproot.runtime.context.prefix_cost import Prices

ids = st.lists(st.integers(0, 3), max_size=30)


@given(ids, ids)
def test_what_follows_the_first_difference_is_computed_anew(old: list[int], new: list[int]) -> None:
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    cost = TokenCountOracle().price(np.array(old, np.int32), np.array(new, np.int32))
    assert cost == EditCost(len(new) - same, None, None)


def test_seconds_and_dollars_where_rate_and_price_are_known() -> None:
    old, new = np.arange(1000, dtype=np.int32), np.arange(500, 2500, dtype=np.int32)
    oracle = TokenCountOracle(Prices(full=3.0, write_premium=1.25), tokens_per_second=4000)
    cost = oracle.price(old, new)
    assert (cost.tokens_recomputed, cost.seconds) == (2000, 0.5)
    assert cost.dollars == pytest.approx(2000 * 3.0 * 1.25 / 1e6)
    with pytest.raises(ValueError, match="tokens_per_second is 0"):
        TokenCountOracle(tokens_per_second=0)
