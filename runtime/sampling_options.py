"""What a caller may say about sampling, and how it becomes the engine's `SamplingParams`.

The API server and `LLM` share it, so that ranges are checked, and defaults filled in, in one place.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from deeproot.scheduler.messages import SamplingParams

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_STOP_TOKEN_IDS = 256
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 128
COMPLETION_MAX_TOKENS = 16
"""What a text completion gets if nothing is said, as OpenAI has it; a chat gets what is left of the window."""
_SEED_BITS = (1 << 64) - 1


class OptionError(ValueError):
    """A sampling option is out of range.

    `field` is its name; the text says what to do.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Sampling settings as a caller gives them; None means "not said", and the model's default holds."""

    max_tokens: int | None = None
    """Output tokens at most; not said: what is left of the window."""
    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    top_k: int | None = None
    """0 or -1: off."""
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Strings that end the output; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Go on after the model's own end tokens."""
    min_tokens: int = 0
    """Output tokens before an end token, a stop token or a stop string can end the output."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens of prompt and output less likely, below 1 likelier."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time that the output has it; negative: added."""
    presence_penalty: float = 0.0
    """Taken from a token's logit once if the output has it; negative: added."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id -> what is added to its logit, from -100 to 100."""
    logprobs: int | None = None
    """Report the logarithm of each output token's probability, and of this many of the likeliest tokens there."""
    prompt_logprobs: int | None = None
    """The same of the prompt's tokens, which are all computed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What the model's `generation_config.json` says, and its limits."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    end_token_ids: tuple[int, ...] = ()
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together."""


def check_prompt_length(num_prompt: int, max_model_len: int, field: str) -> None:
    """Raise OptionError unless the prompt has a token and leaves room for one of output."""
    if num_prompt < 1:
        raise OptionError(field, "The prompt is empty: give at least one token of text.")
    if num_prompt >= max_model_len:
        raise OptionError(
            field,
            f"The prompt has {num_prompt} tokens, but the model's context window is {max_model_len} tokens and must "
            f"hold at least one token of output. Shorten the prompt to at most {max_model_len - 1} tokens.",
        )


def resolve_max_tokens(
    asked: int | None, defaults: SamplingDefaults, num_prompt: int, field: str = "max_tokens"
) -> int:
    """Output tokens that a request may take: what it asks for, if it fits, or else what is left of the window."""
    room = defaults.max_model_len - num_prompt
    if asked is None:
        return min(room, defaults.max_new_tokens or room)
    if asked < 1:
        raise OptionError(field, f"{field} must be at least 1, got {asked}.")
    if asked > room:
        raise OptionError(
            field,
            f"The prompt has {num_prompt} tokens and {field} is {asked}, together {num_prompt + asked}, but the "
            f"model's context window is {defaults.max_model_len} tokens. Lower {field} to at most {room}, or shorten "
            "the prompt.",
        )
    return asked


def resolve(
    options: SamplingOptions,
    defaults: SamplingDefaults,
    *,
    num_prompt: int,
    fallback_seed: int,
    max_tokens_field: str = "max_tokens",
) -> SamplingParams:
    """Check `options` and fill in what they leave open.

    `num_prompt` tokens of prompt must have passed `check_prompt_length`. `fallback_seed` is taken if no seed was
    given. Raises OptionError, which names the field.
    """
    temperature = _within("temperature", options.temperature, defaults.temperature, 0.0, 100.0)
    top_p = _within("top_p", options.top_p, defaults.top_p, 0.0, 1.0)
    if top_p == 0.0:
        raise OptionError(
            "top_p", "top_p must be above 0 and at most 1; for greedy decoding set temperature to 0."
        )
    min_p = _within("min_p", options.min_p, defaults.min_p, 0.0, 1.0)
    top_k = defaults.top_k if options.top_k is None else options.top_k
    if top_k < -1:
        raise OptionError("top_k", f"top_k must be at least 1, or 0 or -1 to switch it off, got {top_k}.")
    _check_stop(options.stop)
    if len(options.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise OptionError("stop_token_ids", f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids.")
    check_token_ids(options.stop_token_ids, defaults.vocab_size, "stop_token_ids")
    seed = fallback_seed if options.seed is None else options.seed
    if not -(1 << 63) <= seed <= _SEED_BITS:
        raise OptionError("seed", "seed must fit in 64 bits.")
    end_ids = () if options.ignore_eos else defaults.end_token_ids
    max_tokens = resolve_max_tokens(options.max_tokens, defaults, num_prompt, max_tokens_field)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=min(max(top_k, 0), defaults.vocab_size),
        top_p=top_p,
        min_p=min_p,
        seed=seed & _SEED_BITS,
        stop_token_ids=tuple(dict.fromkeys((*end_ids, *options.stop_token_ids))),
        min_tokens=_min_tokens(options.min_tokens, max_tokens),
        repetition_penalty=_repetition(options, defaults),
        frequency_penalty=_within("frequency_penalty", options.frequency_penalty, 0.0, -2.0, 2.0),
        presence_penalty=_within("presence_penalty", options.presence_penalty, 0.0, -2.0, 2.0),
        logit_bias=_logit_bias(options.logit_bias, defaults.vocab_size),
        logprobs=_count("logprobs", options.logprobs, MAX_LOGPROBS),
        prompt_logprobs=_count("prompt_logprobs", options.prompt_logprobs, MAX_LOGPROBS),
    )


def check_choices(n: int | None) -> int:
    """How many answers `n` asks for. Raises OptionError."""
    if n is not None and not 1 <= n <= MAX_CHOICES:
        raise OptionError("n", f"n must be between 1 and {MAX_CHOICES}, got {n}.")
    return n or 1


def choices(params: SamplingParams, n: int) -> list[SamplingParams]:
    """The settings of `n` answers to one prompt: alike, but that the seed counts on from the first one's."""
    seeds = [(params.seed + i) & _SEED_BITS for i in range(n)]
    return [msgspec.structs.replace(params, seed=seed) for seed in seeds]


def check_token_ids(ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Raise OptionError unless every id is a token's."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise OptionError(
                field, f"{field} holds {token_id}, but token ids go from 0 to {vocab_size - 1}."
            )


def _within(field: str, asked: float | None, default: float, low: float, high: float) -> float:
    value = default if asked is None else asked
    if not math.isfinite(value) or not low <= value <= high:
        raise OptionError(field, f"{field} must be between {low:g} and {high:g}, got {value}.")
    return float(value)


def _min_tokens(asked: int, max_tokens: int) -> int:
    if not 0 <= asked <= max_tokens:
        raise OptionError(
            "min_tokens",
            f"min_tokens must be between 0 and the {max_tokens} tokens of max_tokens, got {asked}.",
        )
    return asked


def _repetition(options: SamplingOptions, defaults: SamplingDefaults) -> float:
    value = _within("repetition_penalty", options.repetition_penalty, defaults.repetition_penalty, 0.0, 100.0)
    if value == 0:
        raise OptionError("repetition_penalty", "repetition_penalty must be above 0; 1 switches it off.")
    return value


def _logit_bias(biases: Mapping[int, float], vocab_size: int) -> dict[int, float]:
    if len(biases) > MAX_LOGIT_BIAS:
        raise OptionError(
            "logit_bias", f"logit_bias takes at most {MAX_LOGIT_BIAS} tokens, got {len(biases)}."
        )
    check_token_ids(tuple(biases), vocab_size, "logit_bias")
    return {token_id: _within("logit_bias", bias, 0.0, -100.0, 100.0) for token_id, bias in biases.items()}


def _count(field: str, asked: int | None, most: int) -> int | None:
    if asked is not None and not 0 <= asked <= most:
        raise OptionError(field, f"{field} must be between 0 and {most}, got {asked}.")
    return asked


def _check_stop(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise OptionError("stop", f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(stop)}.")
    if any(not text for text in stop):
        raise OptionError("stop", "stop holds an empty string: leave it out.")
    if any(len(text) > MAX_STOP_STRING_CHARS for text in stop):
        raise OptionError("stop", f"A stop string may have at most {MAX_STOP_STRING_CHARS} characters.")
