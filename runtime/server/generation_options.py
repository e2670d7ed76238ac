"""From an API request's fields to the engine's, where chat and text completions agree."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from deeproot.runtime.chat.tokenizer import Int32Array
from deeproot.runtime.sampling_options import (
    SamplingDefaults,
    SamplingOptions,
    check_choices,
    check_prompt_length,
    choices,
    resolve,
)
from deeproot.runtime.server.errors import invalid
from deeproot.runtime.server.schemas import GenerationRequest
from deeproot.runtime.server.unsupported import refuse_unsupported
from deeproot.runtime.structured.held import held_to
from deeproot.runtime.structured.output_grammar import OutputGrammar
from deeproot.scheduler.messages import AddRequest


def check_common(body: GenerationRequest, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise a 400 for what cannot be served yet, or contradicts itself."""
    refuse_unsupported(body.model_extra or {}, unsupported)
    check_choices(body.n)
    if body.stream_options is not None and not body.stream:
        raise invalid(
            "stream_options is only for streams: leave it out, or set stream to true.", "stream_options"
        )


def sampling_options(
    body: GenerationRequest,
    max_tokens: int | None,
    *,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingOptions:
    """The sampling fields of a body; `max_tokens` is whichever of its two names was used. `logprobs`: as
    `SamplingOptions` has them, since surfaces differ. Raises ApiError."""
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return SamplingOptions(
        max_tokens=max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        # An empty string asks for nothing; some clients send it.
        stop=tuple(text for text in stop if text),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        min_tokens=body.min_tokens or 0,
        repetition_penalty=body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def engine_requests(
    rids: Sequence[str],
    ids: Int32Array,
    options: SamplingOptions,
    defaults: SamplingDefaults,
    *,
    fallback_seed: int,
    prompt_field: str,
    max_tokens_field: str = "max_tokens",
    grammar: OutputGrammar | None = None,
) -> list[AddRequest]:
    """Checked engine requests for one or more answers to a prompt. Raises OptionError, which names the field."""
    check_prompt_length(len(ids), defaults.max_model_len, prompt_field)
    sampling = resolve(
        options, defaults, num_prompt=len(ids), fallback_seed=fallback_seed, max_tokens_field=max_tokens_field
    )
    sampling = held_to(grammar, sampling, options, defaults.end_token_ids)
    token_ids = ids.tobytes()
    return [
        AddRequest(rid, token_ids, one) for rid, one in zip(rids, choices(sampling, len(rids)), strict=True)
    ]


def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
    for token in biases:
        # At most as many digits as a 64-bit number has: longer ones are no ids, and Python refuses very long ones.
        if not (token.isascii() and token.isdecimal() and len(token) < 20):
            raise invalid(f"logit_bias has the key {token[:40]!r}: its keys must be token ids.", "logit_bias")
    return {int(token): bias for token, bias in biases.items()}


def new_id(prefix: str) -> str:
    """`chatcmpl-…`"""
    return f"{prefix}-{uuid4().hex}"
