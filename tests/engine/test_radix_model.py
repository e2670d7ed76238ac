"""The prefix tree against a brute-force model, under any order of calls."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.brute_tree import BruteForceTree, ModelLease, Prefix, Record, as_bytes, common_length

from deeproot.engine.eviction import EvictionClass, abandon, class_of, rank_of
from deeproot.engine.leases import Lease, LeaseLimits
from deeproot.engine.radix import RadixCache
from deeproot.engine.radix_checks import check_tree
from deeproot.engine.radix_node import MatchResult, Node, Route, mark_of

sequences = st.lists(st.integers(0, 2), min_size=0, max_size=22)


class TreeAgainstBruteForce(RuleBasedStateMachine):
    @initialize(page_size=st.sampled_from([1, 2, 4]))
    def start(self, page_size: int) -> None:
        self.tree = RadixCache(page_size)
        self.model = BruteForceTree(page_size)
        self.held: list[tuple[Node, Prefix]] = []
        self.known: list[Prefix] = [()]
        self.next_page = 0
        self.evicted: set[Prefix] = set()

    def full(self, base: int, cut: int, tail: list[int]) -> Prefix:
        """A sequence that often shares a start with an earlier one."""
        old = self.known[base % len(self.known)]
        return self.as_known(old[: cut % (len(old) + 1)] + tuple(tail))

    def as_known(self, ids: Prefix) -> Prefix:
        """A sequence as the model has it; a subclass's has namespaces in its tokens."""
        return ids

    def way(self, ids: Prefix) -> tuple[bytes, Route]:
        """The same as the tree has it."""
        return as_bytes(ids), Route(mark_of(b""))

    def of_another(self, ids: Prefix) -> Prefix:
        """The same sequence of another namespace, as the model has it."""
        return tuple(-1 - i for i in ids)

    def way_of_another(self, ids: Prefix) -> Route:
        return Route(mark_of(b"other"))

    @rule(
        base=st.integers(0, 99),
        cut=st.integers(0, 99),
        tail=sequences,
        lock=st.booleans(),
        less=st.integers(0, 3),
    )
    def match(self, base: int, cut: int, tail: list[int], lock: bool, less: int) -> None:
        ids = self.full(base, cut, tail)
        limit = max(len(ids) - less, 0)
        raw, route = self.way(ids)
        found = self.tree.match(raw, limit, route)
        seen = ids[:limit]
        whole = self.model.whole_pages(seen)
        inside, sources = self.model.inside(seen)
        assert found.num_tokens == whole
        assert found.num_reusable == whole + inside
        size = self.model.page_size
        assert found.pages.tolist() == [
            self.model.records[seen[: i + size]].page for i in range(0, whole, size)
        ]
        if found.copy_from is not None:
            assert found.copy_from.page in [self.model.records[s].page for s in sources]
        self.model.touch_path(seen[:whole])
        gone = [common_length(seen, prefix) for prefix in self.evicted]
        assert self.tree.once_cached(raw, found, limit, route) == max([whole + inside, *gone])
        others = [common_length(self.of_another(seen), prefix) for prefix in self.evicted]
        told = self.tree.once_cached(raw, found, limit, self.way_of_another(ids))
        assert told == max([whole + inside, *(n for n in others if n > whole)])
        if lock:
            self.tree.lock(found.node)
            self.model.locks.append(seen[:whole])
            self.held.append((found.node, seen[:whole]))

    @rule(base=st.integers(0, 99), cut=st.integers(0, 99), tail=sequences)
    def probe(self, base: int, cut: int, tail: list[int]) -> None:
        ids = self.full(base, cut, tail)
        assert self.tree.probe(*self.way(ids)) == self.model.whole_pages(ids) + self.model.inside(ids)[0]

    @rule(base=st.integers(0, 99), cut=st.integers(0, 99), tail=sequences)
    def insert(self, base: int, cut: int, tail: list[int]) -> None:
        self.insert_ids(self.full(base, cut, tail), None)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99), tail=sequences)
    def insert_below_own_lock(self, which: int, tail: list[int]) -> None:
        node, prefix = self.held[which % len(self.held)]
        ids = self.as_known(prefix + tuple(tail))
        if ids[: len(prefix)] == prefix:
            self.held.remove((node, prefix))
            self.insert_ids(ids, (node, prefix))

    def insert_ids(self, ids: Prefix, held: tuple[Node, Prefix] | None) -> None:
        size, model = self.model.page_size, self.model
        pages = list(range(self.next_page, self.next_page + -(-len(ids) // size)))
        self.next_page += len(pages)
        whole = model.whole_pages(ids)
        inside, sources = model.inside(ids)
        raw, route = self.way(ids)
        given = np.asarray(pages, dtype=np.int32)
        result = self.tree.insert(raw, given, held[0] if held else None, route)
        if whole + inside == len(ids):
            assert result.num_owned == 0
            end = ids[:whole]
            if inside:
                model.touch_path(min(sources, key=as_bytes))
        else:
            assert result.num_owned == len(pages) - whole // size
            for start in range(whole, len(ids), size):
                model.records[ids[: start + size]] = Record(pages[start // size], 0)
            end = ids
        for page in result.dropped.tolist():
            (gone,) = [p for p, r in model.records.items() if r.page == page]
            assert len(gone) < len(ids)
            assert gone == ids[: len(gone)]
            assert not model.locked(gone)
            del model.records[gone]
        model.touch_path(end)
        if held:
            model.locks.remove(held[1])
            model.locks.append(end)
            self.held.append((result.node, end))
        prefixes = [end[: i + size] for i in range(0, len(end), size)]
        assert result.pages.tolist() == [model.records[p].page for p in prefixes]
        self.known.append(ids)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 99))
    def unlock(self, which: int) -> None:
        node, prefix = self.held.pop(which % len(self.held))
        self.tree.unlock(node)
        self.model.locks.remove(prefix)

    @rule(n=st.integers(0, 9))
    def evict(self, n: int) -> None:
        before = set(self.model.records)
        assert sorted(self.tree.evict(n).tolist()) == sorted(self.model.evict(n))
        self.evicted |= before - set(self.model.records)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "tree"):
            return
        check_tree(self.tree)
        records = self.model.records
        assert self.tree.num_pages == len(records)
        assert self.tree.num_evictable == sum(not self.model.locked(p) for p in records)


class LeasedTreeAgainstBruteForce(TreeAgainstBruteForce):
    """The same with leases and scratch; time passes."""

    @initialize(max_leases=st.integers(1, 5), max_pages=st.integers(1, 30))
    def limit(self, max_leases: int, max_pages: int) -> None:
        self.limits = LeaseLimits(max_seconds=50, max_leases=max_leases, max_pages=max_pages)
        self.now = 0.0

    @rule(
        base=st.integers(0, 99),
        start=st.integers(0, 3),
        kind=st.sampled_from([EvictionClass.LEAF, EvictionClass.TRUNK, EvictionClass.ROOT]),
        priority=st.integers(0, 1),
        seconds=st.integers(0, 60),
        owner=st.sampled_from([b"a", b"b"]),
    )
    def lease(
        self, base: int, start: int, kind: EvictionClass, priority: int, seconds: int, owner: bytes
    ) -> None:
        self.tree.leases.limits = self.limits
        ids = self.known[base % len(self.known)]
        end = self.model.whole_pages(ids)
        shared = self.way(ids)[1].shared // 4
        begin = min(max(start * self.model.page_size, shared), end)
        found = self.found(ids, end)
        self.model.touch_path(ids[:end])
        if begin:
            self.tree.node_at(found.node, begin * 4)
        self.now += 0.125  # so that no two end at once
        self.pass_time(0)
        rank = rank_of(kind, priority)
        running = self.tree.leases.place(Lease(owner, rank, seconds, 0.0, begin * 4, found.node))
        capped = min(seconds, self.limits.max_seconds)
        wanted = ModelLease(owner, rank, capped, self.now + capped, begin, ids[:end], self.model.page_size)
        assert (running is not None) == self.model.place(wanted, self.limits)

    def found(self, ids: Prefix, end: int) -> MatchResult:
        raw, route = self.way(ids)
        return self.tree.match(raw, end, route)

    @rule(seconds=st.integers(0, 10))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        self.tree.leases.expire(self.now)
        self.model.leases = [lease for lease in self.model.leases if lease.end > self.now]

    @rule(base=st.integers(0, 99), cut=st.integers(0, 99))
    def refresh(self, base: int, cut: int) -> None:
        ids = self.full(base, cut, [])
        end = self.model.whole_pages(ids)
        self.tree.leases.refresh(self.found(ids, end).node)
        self.model.touch_path(ids[:end])
        for lease in self.model.leases:
            # Used if any page of its run lies on the way.
            first = lease.prefix[: lease.start + self.model.page_size]
            if len(first) <= end and ids[: len(first)] == first:
                lease.end = self.now + lease.seconds

    @rule(base=st.integers(0, 99), cut=st.integers(0, 99), keep=st.integers(0, 5))
    def abandon(self, base: int, cut: int, keep: int) -> None:
        ids = self.full(base, cut, [])
        end = self.model.whole_pages(ids)
        kept = min(keep * self.model.page_size, end)
        node = self.found(ids, end).node
        self.model.touch_path(ids[:end])
        abandon(self.tree.order, node, self.tree.node_at(node, kept * 4), end * 4)
        self.model.abandon(ids[:end], kept)

    @rule(base=st.integers(0, 99), cut=st.integers(0, 99))
    def join(self, base: int, cut: int) -> None:
        ids = self.full(base, cut, [])
        node = self.found(ids, len(ids)).node
        self.model.touch_path(ids[: self.model.whole_pages(ids)])
        while node.parent is not None:
            if not self.tree.join(node):
                node = node.parent

    @invariant()
    def leases_agree(self) -> None:
        if not hasattr(self, "now"):
            return
        running = sorted((lease.owner, lease.rank, lease.end) for lease in self.tree.leases.running())
        assert running == sorted((lease.owner, lease.rank, lease.end) for lease in self.model.leases)
        for kind in set(EvictionClass) - {EvictionClass.PLAIN}:
            ranks = [self.model.rank(prefix) for prefix in self.model.records]
            assert self.tree.order.num_pages(kind) == sum(class_of(rank) is kind for rank in ranks)


class SharingTreeAgainstBruteForce(LeasedTreeAgainstBruteForce):
    """The same with several namespaces and declared segments.

    In the model each token says whose it is, so that it knows sequences alone: of a prompt that begins with a declared
    segment, the tokens of that segment's whole pages are everybody's, all others its namespace's.
    """

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        segments=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=4),
    )
    def start(self, page_size: int, segments: list[list[int]]) -> None:
        super().start(page_size)
        self.segments = [(), *map(tuple, segments)]
        if len(segments) > 1:  # one goes on where another ends
            self.segments.append((*segments[0], *segments[1]))
        self.model.is_shared = lambda prefix: prefix[-1] >= 30
        self.known = [self.tagged(segment, who) for segment in self.segments for who in (0, 10)]

    def tagged(self, ids: Prefix, who: int) -> Prefix:
        declared = max((s for s in self.segments if ids[: len(s)] == s), key=len)
        shared = len(declared) // self.model.page_size * self.model.page_size
        return tuple(token + (30 if i < shared else who) for i, token in enumerate(ids))

    def as_known(self, ids: Prefix) -> Prefix:
        own = [token // 10 * 10 for token in ids if token < 30]
        return self.tagged(tuple(token % 10 for token in ids), own[0] if own else len(ids) % 2 * 10)

    def way(self, ids: Prefix) -> tuple[bytes, Route]:
        shared = sum(token >= 30 for token in ids)
        who = b"b" if ids and ids[-1] // 10 == 1 else b""
        return as_bytes([token % 10 for token in ids]), self.tree.route(who, shared)

    def of_another(self, ids: Prefix) -> Prefix:
        return tuple(token if token >= 30 else 20 + token % 10 for token in ids)

    def way_of_another(self, ids: Prefix) -> Route:
        return self.tree.route(b"other", self.way(ids)[1].shared // 4)


TestSharingTreeAgainstBruteForce = SharingTreeAgainstBruteForce.TestCase
TestSharingTreeAgainstBruteForce.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeasedTreeAgainstBruteForce = LeasedTreeAgainstBruteForce.TestCase
TestLeasedTreeAgainstBruteForce.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestTreeAgainstBruteForce = TreeAgainstBruteForce.TestCase
TestTreeAgainstBruteForce.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
