"""How much was computed for each tenant, so that the one that had least comes next."""


class TenantShares:
    """Tokens by tenant, of those that have requests; a tenant that comes back starts where the least served one stands.

    So nobody saves up a claim by being away, and nobody who stays falls behind for ever (Sheng et al., "Fairness in Serving
    Large Language Models", 2024).
    """

    def __init__(self) -> None:
        self._served: dict[bytes, int] = {}
        self._open: dict[bytes, int] = {}
        """Requests of each tenant that have not ended."""

    def open(self, tenant: bytes) -> None:
        """A request of `tenant` has come."""
        if tenant not in self._open:
            least = min((self._served[other] for other in self._open), default=0)
            self._served[tenant] = max(self._served.get(tenant, 0), least)
            self._open[tenant] = 0
        self._open[tenant] += 1

    def close(self, tenant: bytes) -> None:
        """A request of `tenant` has ended."""
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]
            least = min((self._served[other] for other in self._open), default=None)
            # Whoever stands at the least loses nothing by being forgotten.
            gone = [
                t for t, n in self._served.items() if t not in self._open and (least is None or n <= least)
            ]
            for one in gone:
                del self._served[one]

    def charge(self, tenant: bytes, num_tokens: int) -> None:
        """So many tokens were computed, or will be, for `tenant`, which has a request here."""
        self._served[tenant] += num_tokens

    def of(self, tenant: bytes) -> int:
        return self._served[tenant]
