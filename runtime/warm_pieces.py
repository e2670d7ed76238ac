"""A prompt computed ahead piece by piece, so that whoever comes meanwhile waits for one of them at most."""

from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.scheduler.messages import AddRequest, Hints, SamplingParams

WARM_LEASE_S = 60.0
"""For which what was warmed is evicted after others, if nothing is said."""
_PIECE_TOKENS = 256
_LAST_PRIORITY = 2**31 - 1


class WarmPieces:
    """The requests that compute a prompt ahead, one after another."""

    def __init__(
        self, rid: str, ids: Int32Array, *, owner: bytes = b"", namespace: bytes = b"", shared: int = 0
    ) -> None:
        """ids: int32 `[tokens]`. rid: what the requests' names begin with. shared: how many of the first tokens are declared."""
        self._rid, self._ids, self._shared = rid, ids, shared
        self._owner, self._namespace = owner, namespace
        self._count = 0
        # If others evict what is computed, or the engine fails on it, it is given up some time.
        self._most = 2 * (len(ids) // _PIECE_TOKENS + 1)

    @property
    def newest_rid(self) -> str:
        """Of the last request of `next`."""
        return f"{self._rid}-{self._count}"

    def next(self, cached: int) -> AddRequest | None:
        """What to compute now that so many tokens of the prompt are cached; None: nothing more.

        Also a prompt that was there gets one request: that is a use, and gives it a name to be leased by.
        """
        if self._count == self._most or (self._count and cached >= len(self._ids)):
            return None
        self._count += 1
        return AddRequest(
            self.newest_rid,
            self._ids[: cached + _PIECE_TOKENS].tobytes(),
            SamplingParams(max_tokens=1, temperature=0.0, seed=0, speculate=False),
            namespace=self._namespace,
            shared=self._shared,
            tenant=self._owner,
            priority=_LAST_PRIORITY,
            hints=Hints(self._owner),
        )
