"""Models of hosted APIs' caches, which have no size that a caller sees, but rules."""

from dataclasses import dataclass
from hashlib import blake2b

from deeproot.bench.cachesim.call import Call, Served
from deeproot.bench.cachesim.vllm_pages import chained_hashes

MOST_MARKS = 4


@dataclass(frozen=True, slots=True)
class HostedRules:
    """When a prefix counts as cached.

    `min_tokens`: shorter prefixes are not cached. `increment`: a cached prefix counts in whole multiples of this (automatic
    caching). `ttl_s`: seconds for which a prefix is kept after its last use (None: for ever). `breakpoints`: only prefixes
    that end at a mark are written, and found at most `look_back` ends of content parts before a mark, the mark's own
    counted; False: everything is cached without being asked.
    """

    min_tokens: int = 0
    increment: int = 1
    ttl_s: float | None = None
    breakpoints: bool = False
    look_back: int = 20

    def __post_init__(self) -> None:
        if self.min_tokens < 0:
            raise ValueError(f"min_tokens is {self.min_tokens}; give 0 or more")
        for name in ("increment", "look_back"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.ttl_s is not None and self.ttl_s <= 0:
            raise ValueError(f"ttl_s is {self.ttl_s}; give seconds, or None for ever")


class AutomaticCache:
    """Every prefix of every prompt is cached, in steps of the increment."""

    def __init__(self, name: str, rules: HostedRules) -> None:
        self._name = name
        self.rules = rules
        self._used: dict[bytes, float] = {}
        """When each prefix was last used."""

    @property
    def name(self) -> str:
        return self._name

    def serve(self, call: Call) -> Served:
        """As `CacheModel`. `written`: what is computed of a prompt that is long enough to be cached."""
        hashes = chained_hashes(call.prompt, self.rules.increment)
        hits = 0
        while hits < len(hashes) and _alive(self._used.get(hashes[hits]), call.time_s, self.rules.ttl_s):
            hits += 1
        self._used.update(dict.fromkeys(hashes, call.time_s))
        cached = hits * self.rules.increment
        if cached < self.rules.min_tokens:
            cached = 0
        size = int(call.prompt.size)
        return Served(cached, size - cached if size >= self.rules.min_tokens else 0)


class BreakpointCache:
    """Prefixes are cached where the caller marks them."""

    def __init__(self, name: str, rules: HostedRules) -> None:
        self._name = name
        self.rules = rules
        self._used: dict[bytes, float] = {}
        """When each written prefix was last used."""

    @property
    def name(self) -> str:
        return self._name

    def serve(self, call: Call) -> Served:
        """As `CacheModel`; what lies behind the last mark is neither read nor written."""
        if len(call.marks) > MOST_MARKS:
            raise ValueError(
                f"call of session {call.session!r} has {len(call.marks)} marks; give at most {MOST_MARKS}"
            )
        hashes = _hashes_at(call)
        marks = [mark for mark in call.marks if mark >= self.rules.min_tokens]
        cached = max((self._found(call, hashes, mark) for mark in marks), default=0)
        for mark in marks:
            self._used[hashes[mark]] = call.time_s
        if cached:  # a read renews what it reads
            self._used[hashes[cached]] = call.time_s
        return Served(cached, max(0, max(marks, default=0) - cached))

    def _found(self, call: Call, hashes: dict[int, bytes], mark: int) -> int:
        """The longest live prefix that ends at the mark or in the parts before it, as far as is looked."""
        at = call.ends.index(mark)
        for end in reversed(call.ends[max(0, at + 1 - self.rules.look_back) : at + 1]):
            if _alive(self._used.get(hashes[end]), call.time_s, self.rules.ttl_s):
                return end
        return 0


def _hashes_at(call: Call) -> dict[int, bytes]:
    """A hash of the tokens up to each end of a content part."""
    made, start = {}, 0
    hasher = blake2b(digest_size=16)
    for end in call.ends:
        hasher.update(call.prompt[start:end].tobytes())
        made[end] = hasher.copy().digest()
        start = end
    return made


def _alive(used: float | None, now: float, ttl_s: float | None) -> bool:
    return used is not None and (ttl_s is None or now - used <= ttl_s)
