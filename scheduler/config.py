"""Limits of the scheduler."""

from dataclasses import dataclass
from typing import Literal, get_args


@dataclass(frozen=True, slots=True)
class SpeculationConfig:
    """How tokens are guessed ahead: what followed the last few tokens where they stood before.

    Raises ValueError, naming the field, for values that could not work.
    """

    num_speculative_tokens: int
    """Drafts that a step verifies for a request at most."""
    prompt_lookup_max: int = 4
    """Tokens that must be the same as before, at most; the longest match is taken."""
    prompt_lookup_min: int = 3
    """And at least."""
    disable_by_batch_size: int | None = None
    """From this number of running requests on nothing is guessed, since a step has enough to do; None: never."""

    def __post_init__(self) -> None:
        for name, most in (
            ("num_speculative_tokens", 64),
            ("prompt_lookup_min", 16),
            ("prompt_lookup_max", 16),
        ):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ValueError(f"{name} must be between 1 and {most}, got {value}")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must be at most prompt_lookup_max "
                f"({self.prompt_lookup_max})"
            )
        if self.disable_by_batch_size is not None and self.disable_by_batch_size < 1:
            raise ValueError(f"disable_by_batch_size must be at least 1, got {self.disable_by_batch_size}")


Policy = Literal["fcfs", "lpm", "hrrn"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
EvictionPolicy = Literal["hints", "lru"]
EVICTION_POLICIES: tuple[EvictionPolicy, ...] = get_args(EvictionPolicy)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What a step and the running set may hold.

    Raises ValueError, naming the field, for values that could not work.
    """

    max_num_seqs: int = 64
    """Requests that run at a time."""
    max_num_batched_tokens: int = 1024
    """Tokens that a step computes at most; longer prompts are computed in chunks."""
    max_model_len: int = 8192
    """Tokens of a request at most, prompt and output together."""
    overlap: bool = False
    """Make and launch the next step while one runs. Worth while where steps run beside the host, as on a GPU."""
    speculation: SpeculationConfig | None = None
    """None: no tokens are guessed ahead."""
    policy: Policy = "hrrn"
    """Which waiting request starts next; see `scheduler.waiting`."""
    patience: float = 2.0
    """How much more than what was ahead of a request may be computed before it starts, as a multiple."""
    reserved_output: int = 128
    """Tokens of output for which each running request has room when another one starts, unless it ends before."""
    max_itl_s: float | None = None
    """How long a step may take while requests decode: prompts are computed in smaller chunks then. None: as long as it takes."""
    eviction: EvictionPolicy = "hints"
    """hints: cached pages go by class, with leases and what sessions leave; lru: least recently used alone."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        if self.eviction not in EVICTION_POLICIES:
            raise ValueError(f"eviction must be one of {', '.join(EVICTION_POLICIES)}, got {self.eviction!r}")
        if not self.patience >= 0:
            raise ValueError(f"patience must be at least 0, got {self.patience}")
        if self.reserved_output < 1:
            raise ValueError(f"reserved_output must be at least 1, got {self.reserved_output}")
        if self.max_itl_s is not None and not self.max_itl_s > 0:
            raise ValueError(f"max_itl_s must be above 0, got {self.max_itl_s}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can get its next token in each step"
            )
