"""Dollars of a run's calls under a provider's rules for cached prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

from deeproot.runtime.context.prefix_cost import common_prefix
from deeproot.runtime.context.tokenizer import TokenIds

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Dollars per million tokens, and when a prefix counts as cached.

    `write_premium`: factor on tokens that are computed and cached. `min_tokens`: shorter prefixes are not cached.
    `increment`: a cached prefix counts in whole multiples of this. `ttl_s`: seconds for which it is kept after its last
    use (None: for ever).
    """

    input: float = 3.0
    cached: float = 0.30
    output: float = 15.0
    write_premium: float = 1.0
    min_tokens: int = 0
    increment: int = 1
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("input", "cached", "output", "write_premium", "min_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"prices.{name} is {getattr(self, name)}; give 0 or more")
        if self.increment < 1:
            raise ValueError(f"prices.increment is {self.increment}; give at least 1")
        if self.ttl_s is not None and self.ttl_s <= 0:
            raise ValueError(f"prices.ttl_s is {self.ttl_s}; give seconds, or None for ever")


@dataclass(frozen=True, slots=True)
class CallCost:
    """Of one call. `prompt` = `cached` + `computed` tokens."""

    prompt: int
    cached: int
    output: int
    dollars: float

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


def cost_of_calls(
    prompts: Sequence[TokenIds], times_ns: Sequence[int], outputs: Sequence[int], table: PriceTable
) -> list[CallCost]:
    """Each call in its order: it finds the longest prefix that an earlier one left and that has not run out.

    `outputs`: tokens of each answer. The cache has room for everything: no server can do better.
    """
    made = []
    for i, prompt in enumerate(prompts):
        cached = max(
            (common_prefix(prompt, prompts[j]) for j in range(i) if _alive(times_ns, j, i, table)), default=0
        )
        cached = cached // table.increment * table.increment
        if cached < table.min_tokens:
            cached = 0
        size = int(prompt.size)
        premium = table.write_premium if size >= table.min_tokens else 1.0
        dollars = (size - cached) * table.input * premium + cached * table.cached + outputs[i] * table.output
        made.append(CallCost(size, cached, outputs[i], dollars / _MILLION))
    return made


def _alive(times_ns: Sequence[int], earlier: int, now: int, table: PriceTable) -> bool:
    return table.ttl_s is None or times_ns[now] - times_ns[earlier] <= table.ttl_s * 1e9
