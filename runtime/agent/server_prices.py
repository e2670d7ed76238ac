"""What a change of the prompt costs, as the server says that would compute it."""

from collections.abc import Callable

from deeproot.runtime.cache_client import CacheClient, CacheError
from deeproot.runtime.context.cost_oracle import CostOracle, EditCost
from deeproot.runtime.context.tokenizer import TokenIds


class ServerPrices:
    """A `CostOracle` that asks `/v1/cache/price`. When the server does not answer it says so once, and another is asked from
    then on: a run does not end for a price."""

    def __init__(self, cache: CacheClient, otherwise: CostOracle, told: Callable[[str], None]) -> None:
        """told: gets one sentence for the user."""
        self._cache: CacheClient | None = cache
        self._otherwise = otherwise
        self._told = told

    def price(self, old_tokens: TokenIds, new_tokens: TokenIds) -> EditCost:
        """Cost of sending `new_tokens` now, by what the server holds."""
        if self._cache is not None and old_tokens.size and new_tokens.size:
            try:
                said = self._cache.price(old_tokens, new_tokens)
                return EditCost(said["tokens_recomputed"], said["seconds"], said["dollars"])
            except CacheError as error:
                self._told(f"--server-prices: {error}; from now on tokens are counted")
                self._cache = None
        return self._otherwise.price(old_tokens, new_tokens)
