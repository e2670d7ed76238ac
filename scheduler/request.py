"""A request as the scheduler sees it."""

from dataclasses import dataclass, field

import msgspec
import numpy as np

from deeproot.engine.batch import Int32Array
from deeproot.engine.radix_node import TOKEN_BYTES, Node, Route, mark_of
from deeproot.scheduler.constraints import Constraint
from deeproot.scheduler.messages import (
    AddRequest,
    FinishReason,
    Hints,
    SamplingParams,
    TokenOutput,
    Usage,
)

_UNNAMED = Route(mark_of(b""))


@dataclass(slots=True, eq=False)
class Request:
    """Account and state of one request. What changes every step is in the running table's arrays, not here."""

    rid: str
    token_ids: bytes
    """int32 bytes: the prompt and, after a preemption, the output so far."""
    num_prompt: int
    sampling: SamplingParams
    step_by_step: bool = False
    """Its next step needs its last token on the host (a mask or a penalty made there): it is never scheduled ahead."""
    constraint: Constraint | None = None
    """Where the output stands in its grammar, if it has one; also while the request is preempted."""
    row: int = -1
    """Row in the running table; -1 while waiting."""
    node: Node | None = None
    """The tree node that the request holds locked while it runs."""
    num_borrowed: int = 0
    """Its first pages that belong to the tree; the later ones are its own."""
    start: int = 0
    """Tokens that were reused when it was last admitted."""
    high_water: int = 0
    """Most tokens that it ever had computed, before the present run."""
    num_cached: int | None = None
    """Prompt tokens reused at the first admission; None before."""
    num_recomputed: int = 0
    num_scored: int = 0
    """Tokens of the prompt, from its first, after which the next one's logarithms have been reported."""
    num_evicted: int = 0
    """Prompt tokens that followed the cached ones and had been evicted, at the first admission."""
    namespace: bytes = b""
    route: Route = _UNNAMED
    """Which cached sequences it may meet."""
    num_seen: int = 0
    """See `AddRequest.seen`."""
    priority: int = 0
    """Lower ones start first."""
    tenant: bytes = b""
    """Whose it is; each has the same claim to be computed for."""
    order: int = 0
    """How many had arrived before it."""
    arrived: float = 0.0
    """When, by the scheduler's clock, in seconds."""
    num_missing: int = 0
    """Tokens that it has to compute before its next token, as last seen; while it waits."""
    allowance: int = 0
    """How many tokens those that arrived later might compute before it starts, when it came."""
    place: int = 0
    """In its line of waiting requests."""
    tokens_when_preempted: int = 0
    """How many tokens it had when it was preempted last; 0 if it never was."""
    hints: Hints | None = None
    waits_for: "Request | None" = field(default=None, repr=False)
    """A running request that is computing a prefix of this one."""
    waits_until: int = 0
    """Number of tokens of `waits_for` after which it is worth while to match again."""

    @classmethod
    def from_message(cls, message: AddRequest, page_size: int) -> "Request":
        """page_size: in tokens; of what is shared only whole pages are."""
        shared = min(message.shared, len(message.token_ids) // TOKEN_BYTES) // page_size * page_size
        return cls(
            message.rid,
            message.token_ids,
            len(message.token_ids) // TOKEN_BYTES,
            message.sampling,
            step_by_step=message.sampling.grammar is not None,
            namespace=message.namespace,
            route=Route(mark_of(message.namespace), shared * TOKEN_BYTES),
            num_seen=message.seen,
            priority=message.priority,
            tenant=message.tenant,
            hints=message.hints,
        )

    @property
    def session(self) -> bytes:
        """Requests of one session start in order; empty: of none."""
        return b"" if self.hints is None else self.hints.session

    @property
    def num_tokens(self) -> int:
        """Tokens at the last admission; the running table knows the present number."""
        return len(self.token_ids) // TOKEN_BYTES

    @property
    def num_cacheable(self) -> int:
        """Tokens that may be taken from the cache: all but the last, unless logits of earlier ones are wanted."""
        last = self.num_tokens - 1
        if self.sampling.prompt_logprobs is None or self.num_scored >= self.num_prompt - 1:
            return last
        return min(last, self.num_scored)

    def ids(self) -> Int32Array:
        return np.frombuffer(self.token_ids, dtype=np.int32)

    def why_impossible(self, max_model_len: int) -> str | None:
        """Why the request can never run; None if it can."""
        if self.num_prompt == 0:
            return "the prompt is empty: send at least one token"
        if self.num_prompt >= max_model_len:
            most = max_model_len - 1
            return (
                f"the prompt has {self.num_prompt} tokens, the server takes at most {most} and one of output"
            )
        return None

    def account_run(self, num_computed: int) -> None:
        """Book the tokens of a run that ends with `num_computed` of them computed."""
        self.num_recomputed += max(0, min(self.high_water, num_computed) - self.start)
        self.high_water = max(self.high_water, num_computed)

    def finished(self, reason: FinishReason, last: TokenOutput, num_tokens: int) -> TokenOutput:
        """`last` with the reason and the accounts of a request that ends with `num_tokens` tokens."""
        cached = self.num_cached or 0
        usage = Usage(
            prompt=self.num_prompt,
            cached=cached,
            computed=max(0, min(self.num_prompt, self.high_water) - cached),
            output=num_tokens - self.num_prompt,
            recomputed=self.num_recomputed,
            evicted=self.num_evicted,
        )
        return msgspec.structs.replace(last, finish_reason=reason, usage=usage)
