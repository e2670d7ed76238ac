"""Figures of a running engine. No tensors, so that the text side can read them."""

from dataclasses import dataclass, fields

PULSE_S = 1.0
"""How often a living engine says so."""


@dataclass(slots=True)
class Counters:
    """Totals since start, in tokens unless said."""

    steps: int = 0
    prompt: int = 0
    cached: int = 0
    computed: int = 0
    """Tokens that went through the model: prompts, outputs and what was recomputed."""
    surplus: int = 0
    """Of these, what was computed ahead for requests that turned out to have ended."""
    output: int = 0
    drafted: int = 0
    """Tokens that were guessed ahead, and computed to verify them."""
    accepted: int = 0
    """Those of them that were sampled."""
    preemptions: int = 0
    evicted_pages: int = 0

    def clear(self) -> None:
        """Begin anew; whoever counts goes on counting here."""
        for field in fields(self):
            setattr(self, field.name, 0)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The state after the latest step."""

    num_running: int
    num_waiting: int
    num_pages: int
    num_free_pages: int
    num_cached_pages: int
    """Pages that belong to the prefix tree."""
    num_evictable_pages: int
    num_scratch_pages: int
    """Cached pages that their session has left, the first to go."""
    num_leaf_pages: int
    num_trunk_pages: int
    num_root_pages: int
    """Cached pages under a lease, by its class."""
    num_shared_pages: int
    """Cached pages of declared segments. All other cached pages are plain."""
    num_leases: int
    leaf_hits: int
    trunk_hits: int
    root_hits: int
    """Of the counters' `cached`, tokens in pages that were under a lease, by its class."""
    shared_hits: int
    """The same of declared segments."""
    page_size: int
    counters: Counters
