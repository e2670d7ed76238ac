"""The priced choice on small runs, and that it looks at what the cache holds."""

import numpy as np
import pytest

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.priced_edits import Probing, compare, main, worse_by
from deeproot.runtime.cache_price import EngineOracle
from deeproot.runtime.context.invalidation.price import Invalid, Stakes, Treatment, choose
from deeproot.runtime.context.prefix_cost import Prices

PRICES = Prices()


def test_the_price_is_never_worse_than_the_better_of_two_habits() -> None:
    warm = compare([0, 1], 14, 0.0, PRICES)
    evict, tail, _ = (sum(one.dollars(PRICES) for one in runs) for runs in warm.values())
    assert evict != tail, "nothing was stale"
    assert max(worse_by(warm, PRICES)) <= 1e-9


def test_where_the_cache_has_lost_the_session_all_is_evicted() -> None:
    cold = compare([0], 14, 1.0, PRICES)
    assert cold["by the engine's price"] == cold["always evicted"]
    assert cold["always at the tail"][0].dollars(PRICES) > cold["always evicted"][0].dollars(PRICES)


@pytest.mark.parametrize(("cold", "treatment"), [(False, Treatment.TAIL), (True, Treatment.EVICT)])
def test_an_observation_is_evicted_once_what_follows_it_is_cold_anyway(
    cold: bool, treatment: Treatment
) -> None:
    tree = OwnTree(num_pages=256, page_size=16)
    ids = np.random.default_rng(0).integers(4, 1000, 2000).astype(np.int32)
    tree.serve(Call("s", 0.0, ids))
    if cold:  # as if the end of the session had been evicted while its tool ran
        tree.pool.free(tree.cache.evict(115))
    stale = Invalid(7, ((400, 600),), Treatment.EVICT, ids[:0], ids[:20])
    oracle, stakes = EngineOracle(Probing(tree)), Stakes(turns_left=3)
    choice = choose(ids, [stale], oracle=oracle, prices=PRICES, stakes=stakes)
    assert choice.treatments == {7: treatment}
    kept = tree.cache.probe(ids.tobytes())
    assert kept == (160 if cold else 2000)


def test_the_command_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--turns", "4", "--seeds", "1"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("by the engine's price") == 2
