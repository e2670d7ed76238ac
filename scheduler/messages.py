"""What crosses between the text side (`runtime`) and the scheduler. Token ids travel as int32 bytes."""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen and when a request ends. Values are validated by the side that made them."""

    max_tokens: int
    """Output tokens at most, at least 1."""
    temperature: float = 1.0
    """0 means greedy."""
    top_k: int = 0
    """0 means off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int
    """64 bits, unsigned. Same seed, prompt and settings: same tokens, whatever else is in the batch."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the request (the model's end tokens among them, unless they are to be ignored)."""
    grammar: str | None = None
    """What the output must be, as `engine.grammar` has it."""


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    rid: str
    token_ids: bytes
    """int32, native byte order, at least one token."""
    sampling: SamplingParams
    namespace: bytes = b""
    """Requests of different namespaces share no cached prefix."""
    seen: int = 0
    """How many of its first tokens the sender knows to have been computed before; if fewer are cached, the engine
    looks whether they were evicted."""


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    rid: str


class Usage(msgspec.Struct, frozen=True):
    """Token accounts of a finished request: `cached + computed == prompt`."""

    prompt: int
    cached: int
    """Prompt tokens whose K and V were in the cache when the request was first admitted."""
    computed: int
    """Prompt tokens that the request had to compute."""
    output: int
    recomputed: int = 0
    """Tokens computed once more after preemptions."""
    evicted: int = 0
    """Computed prompt tokens, the first of them, that had been cached and were evicted; 0 if it was not asked for."""


class TokenOutput(msgspec.Struct, frozen=True):
    """One step's news about one request: a new token, its end, or both."""

    rid: str
    token_id: int | None
    """None when the request ends without a new token. The end token itself is reported."""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """Given with `finish_reason`."""
    error: str | None = None
    """One sentence for the user, with `finish_reason` "error"."""
    invalid: bool = False
    """Whether the error is the request's own: it could not have gone well."""
