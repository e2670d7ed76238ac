"""A workload through caches, counted."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.bench.cachesim.call import CacheModel, Call
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.cachesim.prices import PriceTable
from deeproot.bench.cachesim.sglang_tree import SglangTree
from deeproot.bench.cachesim.vllm_pages import VllmPages
from deeproot.bench.report.result import How, Metric

OWN_PAGE, VLLM_PAGE = 64, 16


@dataclass(frozen=True, slots=True)
class Totals:
    """Of all calls of a workload through one cache. Tokens, counted exactly. `dollars`: None for caches of one's own."""

    cache: str
    calls: int
    prompt: int
    cached: int
    written: int
    output: int
    refused: int
    dollars: float | None

    @property
    def computed(self) -> int:
        """Prompt tokens that were not cached."""
        return self.prompt - self.cached

    @property
    def hit_rate(self) -> float:
        """Cached share of all prompt tokens; 0 if there are none."""
        return self.cached / self.prompt if self.prompt else 0.0


def replay(calls: Sequence[Call], cache: CacheModel, prices: PriceTable | None = None) -> Totals:
    """Serve the calls in their order."""
    cached = written = refused = 0
    dollars = 0.0
    for call in calls:
        served = cache.serve(call)
        cached += served.cached
        written += served.written
        refused += served.refused
        if prices is not None:
            dollars += prices.dollars(int(call.prompt.size), served, int(call.answer.size))
    return Totals(
        cache=cache.name,
        calls=len(calls),
        prompt=sum(int(call.prompt.size) for call in calls),
        cached=cached,
        written=written,
        output=sum(int(call.answer.size) for call in calls),
        refused=refused,
        dollars=None if prices is None else dollars,
    )


def own_caches(num_tokens: int) -> list[CacheModel]:
    """The engines' caches with memory for this many tokens."""
    return [
        OwnTree(max(1, num_tokens // OWN_PAGE), OWN_PAGE),
        VllmPages(max(1, num_tokens // VLLM_PAGE), VLLM_PAGE),
        SglangTree(num_tokens),
    ]


def room_for_all(calls: Sequence[Call]) -> int:
    """Tokens with which no cache ever has to evict: every call's own, in whole pages."""
    return sum(-(-call.computed_ids.size // OWN_PAGE) * OWN_PAGE for call in calls)


def replay_everywhere(
    calls: Sequence[Call], num_tokens: int | None, tables: Sequence[PriceTable]
) -> list[Totals]:
    """Through each engine's cache of `num_tokens` (None: without limit) and each table's hosted one."""
    room = room_for_all(calls) if num_tokens is None else num_tokens
    made = [replay(calls, cache) for cache in own_caches(room)]
    return made + [replay(calls, table.cache(), table) for table in tables]


def totals_metrics(totals: Totals, name: str) -> list[Metric]:
    """Hit rate, computed tokens and dollars, under a name."""
    made = [
        Metric(
            name=f"hit rate, {name}",
            unit="",
            how=How.COUNTED,
            samples=(totals.hit_rate,),
            higher_is_better=True,
        ),
        Metric(name=f"computed, {name}", unit="tokens", how=How.COUNTED, samples=(float(totals.computed),)),
    ]
    if totals.dollars is not None:
        made.append(Metric(name=f"price, {name}", unit="$", how=How.COUNTED, samples=(totals.dollars,)))
    return made
