"""Limits of the scheduler."""

from dataclasses import dataclass


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

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), so that every running request can get its next token in each step"
            )
