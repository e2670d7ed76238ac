"""How running requests take pages, hand them to the tree, and give them back, with steps in flight that read them."""

from collections import deque

from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.radix import RadixCache
from deeproot.scheduler.admission import take_pages
from deeproot.scheduler.claims import Claims
from deeproot.scheduler.flight import Flight
from deeproot.scheduler.request import Request
from deeproot.scheduler.table import RunningTable


class Holdings:
    """Pages and locks of the requests in the running table."""

    def __init__(
        self,
        cache: RadixCache,
        pool: KVPool,
        table: RunningTable,
        flights: deque[Flight],
        claims: Claims,
    ) -> None:
        """flights: the steps in flight, oldest first; the scheduler's own, which it changes."""
        self._cache = cache
        self._pool = pool
        self._table = table
        self._flights = flights
        self._claims = claims

    @property
    def num_available(self) -> int:
        """Pages that `take` could find."""
        return self._pool.num_free + self._cache.num_evictable

    def take(self, n: int) -> Int32Array:
        """`n` pages, evicting cached ones if too few are free. Raises OutOfPages."""
        return take_pages(self._cache, self._pool, n)

    def insert(self, request: Request, *, whole_pages_only: bool) -> None:
        """Hand the request's computed tokens to the tree and borrow them from there from now on.

        With a part-filled last page the request must be about to leave: that page is the tree's or free afterwards.
        """
        table, size = self._table, self._pool.page_size
        num_tokens = int(table.num_computed[request.row])
        if whole_pages_only:
            num_tokens -= num_tokens % size
        if num_tokens <= request.num_borrowed * size:
            return
        ids = table.tokens[request.row, :num_tokens].tobytes()
        pages = table.page_table[request.row, : -(-num_tokens // size)]
        given = pages.copy()
        result = self._cache.insert(ids, given, request.node, request.route)
        # Pages that the tree had already: use its copies and give ours back.
        duplicates = given[request.num_borrowed : len(given) - result.num_owned]
        pages[: len(result.pages)] = result.pages
        self._free(duplicates)
        self._free(result.dropped)
        request.node, request.num_borrowed = result.node, len(given)

    def leave(self, request: Request, *, keep: bool, ended: bool = True) -> None:
        """Free the row of a retired request that is in no step in flight, its pages and its lock.

        keep: its computed tokens stay cached; not if they are in doubt. ended: it will not come back.
        """
        if keep:
            self.insert(request, whole_pages_only=False)
            if ended and request.hints is not None:
                self._claims.ended(request)
        self._free(self._table.pages_of(request)[request.num_borrowed :])
        assert request.node is not None
        self._cache.unlock(request.node)
        request.node, request.num_borrowed = None, 0
        self._table.remove(request)

    def _free(self, pages: Int32Array) -> None:
        """Give pages back that no later step will use; those in flight may still read them."""
        if self._flights:
            self._flights[-1].frees.append(pages.copy())
        else:
            self._pool.free(pages)
