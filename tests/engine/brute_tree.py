"""A brute-force prefix tree that keeps one record a page: what the real one must do."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from deeproot.engine.eviction import EvictionClass, rank_of
from deeproot.engine.leases import LeaseLimits

Prefix = tuple[int, ...]


def as_bytes(ids: Prefix | list[int]) -> bytes:
    return np.asarray(ids, dtype=np.int32).tobytes()


@dataclass
class Record:
    page: int
    used: int
    scratch: bool = False


@dataclass(eq=False)
class ModelLease:
    owner: bytes
    rank: int
    seconds: float
    end: float
    start: int
    prefix: Prefix

    page_size: int

    def covers(self, prefix: Prefix) -> bool:
        """A part-filled page beside the run is not of it, though its ids are."""
        if len(prefix) % self.page_size:
            return False
        return self.start < len(prefix) <= len(self.prefix) and self.prefix[: len(prefix)] == prefix


class BruteForceTree:
    """Every cached page under the token ids from the start of the sequence to the page's last token."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.records: dict[Prefix, Record] = {}
        self.locks: list[Prefix] = []
        self.leases: list[ModelLease] = []
        self.clock = 0
        self.is_shared: Callable[[Prefix], bool] = lambda _: False
        """Whether a page is everybody's: neither leased nor left by anyone, and the last to go."""

    def parent_of(self, prefix: Prefix) -> Prefix:
        return prefix[: (len(prefix) - 1) // self.page_size * self.page_size]

    def siblings(self, parent: Prefix) -> list[Prefix]:
        return [p for p in self.records if self.parent_of(p) == parent]

    def whole_pages(self, ids: Prefix) -> int:
        n = 0
        while n + self.page_size <= len(ids) and ids[: n + self.page_size] in self.records:
            n += self.page_size
        return n

    def inside(self, ids: Prefix) -> tuple[int, list[Prefix]]:
        """Most tokens that match beyond the whole pages, and the pages that offer them."""
        n = self.whole_pages(ids)
        best, sources = 0, []
        for sibling in self.siblings(ids[:n]):
            common = 0
            while n + common < min(len(sibling), len(ids)) and sibling[n + common] == ids[n + common]:
                common += 1
            if common > best:
                best, sources = common, [sibling]
            elif common == best and common:
                sources.append(sibling)
        return best, sources

    def touch_path(self, prefix: Prefix) -> None:
        self.clock += 1
        while prefix:
            self.records[prefix].used = self.clock
            self.records[prefix].scratch = False
            prefix = self.parent_of(prefix)

    def locked(self, prefix: Prefix) -> bool:
        whole = len(prefix) % self.page_size == 0
        return any(held == prefix or (whole and held[: len(prefix)] == prefix) for held in self.locks)

    def evict(self, n: int) -> list[int]:
        out: list[int] = []
        while len(out) < n:
            parents = {self.parent_of(p) for p in self.records}
            free = [p for p in self.records if p not in parents and not self.locked(p)]
            if not free:
                break
            victim = min(free, key=lambda p: (self.rank(p), self.records[p].used))
            out.append(self.records.pop(victim).page)
            for lease in self.leases:
                if lease.covers(victim):
                    lease.prefix = self.parent_of(victim)
            self.leases = [lease for lease in self.leases if len(lease.prefix) > lease.start]
        return out

    def rank(self, prefix: Prefix) -> int:
        if self.is_shared(prefix):
            return rank_of(EvictionClass.SHARED)
        plain = -1 if self.records[prefix].scratch else 0
        return max((lease.rank for lease in self.leases if lease.covers(prefix)), default=plain)

    def abandon(self, prefix: Prefix, keep: int) -> None:
        while len(prefix) > keep and not self.is_shared(prefix):
            if self.locked(prefix) or any(lease.covers(prefix) for lease in self.leases):
                return
            if any(not self.records[p].scratch for p in self.siblings(prefix)):
                return
            self.records[prefix].scratch = True
            prefix = self.parent_of(prefix)

    def leased_by(self, owner: bytes, *more: ModelLease) -> set[Prefix]:
        own = [lease for lease in (*self.leases, *more) if lease.owner == owner]
        return {prefix for prefix in self.records if any(lease.covers(prefix) for lease in own)}

    def place(self, new: ModelLease, limits: LeaseLimits) -> bool:
        if new.seconds <= 0 or len(new.prefix) <= new.start:
            return False
        for old in self.leases:
            if (old.owner, old.rank, old.start, old.prefix) == (new.owner, new.rank, new.start, new.prefix):
                old.seconds, old.end = new.seconds, max(old.end, new.end)
                return True
        while True:
            own = [lease for lease in self.leases if lease.owner == new.owner]
            fits = len(self.leased_by(new.owner, new)) <= limits.max_pages
            if fits and len(own) < limits.max_leases:
                self.leases.append(new)
                return True
            lowest = min(own, key=lambda lease: (lease.rank, lease.end), default=None)
            if lowest is None or lowest.rank > new.rank:
                return False
            self.leases.remove(lowest)


def common_length(one: Prefix, other: Prefix) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
