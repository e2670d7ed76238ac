"""Which waiting request starts next, and with how much of its prompt already cached."""

from collections.abc import Iterable

import numpy as np

from deeproot.engine.batch import Int32Array
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_node import TOKEN_BYTES, MatchResult, common_tokens
from deeproot.scheduler.request import Request
from deeproot.scheduler.table import RunningTable
from deeproot.scheduler.waiting import WaitingRequests

_LOOK_AHEAD = 64
"""How many waiting requests are looked at for one whose prefix nobody is computing."""
_LOOK_ANEW = 8
"""Of how many waiting requests it is looked up each time whether more is cached than when they came."""


class Admission:
    """In the order of `WaitingRequests`; but a request whose prefix is being computed now waits for that instead.

    Nothing is admitted that does not fit with what the running requests still need for their prompts and, each, for the
    next `reserved_output` tokens of its output, so that an admission is not taken back soon. The first that does not fit
    holds up those behind it: else a long one would wait for as long as short ones come.
    """

    def __init__(
        self,
        cache: RadixCache,
        pool: KVPool,
        table: RunningTable,
        waiting: WaitingRequests,
        reserved_output: int,
    ) -> None:
        self.cache = cache
        self.pool = pool
        self.table = table
        self.waiting = waiting
        self.reserved_output = reserved_output

    def num_missing(self, request: Request) -> int:
        """Tokens that a waiting request has to compute before its next one."""
        cached = self.cache.probe(request.token_ids, request.route)
        return request.num_tokens - min(cached, request.num_cacheable)

    def look_anew(self) -> None:
        """Note what has been cached since they came for some of those that wait."""
        for request in self.waiting.some(_LOOK_ANEW):
            self.waiting.note_missing(request, self.num_missing(request))

    def admit(self, limit_of: dict[str, int], now: float) -> Request | None:
        """Move the first request that can start into the running table and return it. now: seconds."""
        if self.table.is_full:
            return None
        prefilling = self._prefilling()
        lost_some = True
        while lost_some:
            lost_some = False
            for request in self.waiting.tries(_LOOK_AHEAD, now):
                if self._still_waits(request):
                    continue
                match = self.cache.match(request.token_ids, request.num_cacheable, request.route)
                num_missing = request.num_tokens - match.num_reusable
                hoped_for = request.num_missing
                self.waiting.note_missing(request, num_missing)
                if num_missing > hoped_for:
                    # What it would have gone on from has been evicted: it may no longer be the next one.
                    lost_some = True
                    break
                if self._find_leader(request, match.num_reusable, prefilling):
                    continue
                if not self._start(request, match, limit_of[request.rid]):
                    return None
                self.waiting.start(request, request.num_tokens - request.start)
                return request
        return None

    def _prefilling(self) -> list[Request]:
        rows = self.table.rows
        missing = self.table.num_tokens[rows] - self.table.num_computed[rows]
        return [self.table.request(row) for row in rows[missing > 1].tolist()]

    def _still_waits(self, request: Request) -> bool:
        leader = request.waits_for
        if leader is None:
            return False
        if leader.row < 0 or self.table.num_computed[leader.row] >= request.waits_until:
            request.waits_for = None
            return False
        return True

    def _find_leader(self, request: Request, num_reusable: int, prefilling: Iterable[Request]) -> bool:
        """Is a running request about to compute at least a page more of this prompt than is cached?"""
        size = self.cache.page_size
        for leader in prefilling:
            common = common_tokens(request.token_ids, leader.token_ids)
            if leader.route != request.route:
                common = min(common, min(leader.route.shared, request.route.shared) // TOKEN_BYTES)
            # Until the leader ends, only its whole pages can be matched.
            until = min(-(-common // size), leader.num_tokens // size) * size
            gain = min(common, until, request.num_cacheable) - num_reusable
            if gain >= size and self.table.num_computed[leader.row] < until:
                request.waits_for, request.waits_until = leader, until
                return True
        return False

    def _start(self, request: Request, match: MatchResult, limit: int) -> bool:
        self.cache.lock(match.node)
        copy_from = match.copy_from
        if copy_from is not None:
            self.cache.lock(copy_from.node)
            if not self._fits(request, len(match.pages), limit):
                # The page to copy from could be the one that is missing.
                self.cache.unlock(copy_from.node)
                copy_from = None
        if copy_from is None and not self._fits(request, len(match.pages), limit):
            self.cache.unlock(match.node)
            return False
        pages, reused = match.pages, match.num_tokens
        if copy_from is not None:
            own = take_pages(self.cache, self.pool, 1)
            self.pool.copy(copy_from.page, int(own[0]), copy_from.num_tokens)
            self.cache.unlock(copy_from.node)
            pages, reused = np.append(pages, own), reused + copy_from.num_tokens
        request.node, request.num_borrowed, request.start = match.node, len(match.pages), reused
        if request.num_cached is None:
            request.num_cached = reused
            request.num_evicted = self._evicted_behind(request, match, reused)
        self.table.add(request, pages, reused, limit)
        return True

    def _evicted_behind(self, request: Request, match: MatchResult, reused: int) -> int:
        """How many tokens behind the reused ones had been cached once, if any are known to have been computed."""
        if request.num_seen <= reused:
            return 0
        limit = min(request.num_prompt - 1, request.num_seen)
        once = self.cache.once_cached(request.token_ids, match, limit, request.route)
        return max(0, once - max(reused, match.num_reusable))

    def _fits(self, request: Request, num_matched: int, limit: int) -> bool:
        table, rows = self.table, self.table.rows
        # A request's last token is never computed.
        ahead = self.reserved_output - 1
        end = max(request.num_tokens, min(limit - 1, request.num_tokens + ahead))
        wanted = -(-end // self.cache.page_size) - num_matched
        expected = table.num_expected[rows]
        ends = np.maximum(expected, np.minimum(table.limit[rows] - 1, expected + ahead))
        promised = int(table.missing_pages(rows, ends).sum())
        return wanted + promised <= self.pool.num_free + self.cache.num_evictable


def take_pages(cache: RadixCache, pool: KVPool, n: int) -> Int32Array:
    """Take `n` pages from the pool, evicting cached ones if it has too few.

    Raises OutOfPages when locks leave too few; what was evicted is free then.
    """
    if pool.num_free < n:
        pool.free(cache.evict(n - pool.num_free))
    return pool.alloc(n)
