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
    min_tokens: int = 0
    """Output tokens before any of `stop_token_ids` can be sampled."""
    repetition_penalty: float = 1.0
    """Above 0: positive logits of tokens in prompt and output are divided by it, negative ones multiplied; 1 is off."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit each time that the output has it."""
    presence_penalty: float = 0.0
    """Taken from a token's logit once if the output has it."""
    logit_bias: dict[int, float] = {}
    """Token id -> what is added to its logit."""
    logprobs: int | None = None
    """How many of the likeliest tokens are reported beside each output token; None: no logarithms at all."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens after the first. None of the prompt is taken from the cache then."""
    speculate: bool = True
    """Whether the engine may guess tokens ahead, if it does at all. The output is the same either way."""
    grammar: str | None = None
    """What the output must be, as `engine.grammar` has it."""


class Boundary(msgspec.Struct, frozen=True, array_like=True):
    """The end of a run of a prompt's tokens, from the boundary before it, and what becomes of the run."""

    end: int
    """Tokens from the start; one beyond the sequence stands for its end."""
    zone: int
    """`engine.eviction.EvictionClass` of the run: LEAF, TRUNK or ROOT."""
    lease_s: float = 0.0
    """How long it is to be kept before others, from its last use on; 0: no lease."""
    priority: int = 0
    """0 to 15, among runs of the same zone."""
    pause: bool = False
    """The lease is for the time until the conversation goes on, and ends then."""


class Hints(msgspec.Struct, frozen=True):
    """What a request says about its place in a conversation. With hints, the engine remembers where it lies when it
    has ended, so that it can be leased."""

    owner: bytes = b""
    """Whose leases count together."""
    session: bytes = b""
    """Requests of one session, within a namespace, start in the order in which they came: what the newest one leaves of the
    others is scratch. Empty: none."""


class AddRequest(msgspec.Struct, frozen=True, tag="add"):
    rid: str
    token_ids: bytes
    """int32, native byte order, at least one token."""
    sampling: SamplingParams
    namespace: bytes = b""
    """Requests of different namespaces share no cached prefix but declared segments."""
    shared: int = 0
    """How many of its first tokens are a segment that was declared to be shared by all namespaces."""
    tenant: bytes = b""
    """Whose request it is, whatever its namespace."""
    priority: int = 0
    """Lower ones start first and are preempted last."""
    seen: int = 0
    """How many of its first tokens the sender knows to have been computed before; if fewer are cached, the engine
    looks whether they were evicted."""
    hints: Hints | None = None


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


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms of probabilities by the model's own logits, at one place of a sequence."""

    token_id: int
    """The token that stands there."""
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens there, likeliest first."""


class TokenOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """One step's news about one request: a new token, its end, or both; or logarithms of its prompt."""

    rid: str
    token_id: int | None
    """None when there is no new one. The end token itself is reported. A step that has several gives several outputs."""
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """Given with `finish_reason`."""
    error: str | None = None
    """One sentence for the user, with `finish_reason` "error"."""
    logprobs: TokenLogprobs | None = None
    """Of `token_id`, if the request asked."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the next tokens of the prompt, the second to the last in all."""
    invalid: bool = False
    """Whether the error is the request's own: it could not have gone well."""
