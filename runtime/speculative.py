"""`--speculative-config` as vLLM names it: which tokens are guessed ahead, and how many."""

from typing import Literal

import msgspec

from deeproot.scheduler.config import SpeculationConfig

EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5}'


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    num_speculative_tokens: int
    method: Literal["ngram"] = "ngram"
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    disable_by_batch_size: int | None = None


def parse_speculative(value: str | dict[str, object]) -> SpeculationConfig | None:
    """From JSON or its fields; None for `off`. Raises ValueError, which says what to write."""
    if value == "off":
        return None
    try:
        fields = (
            msgspec.json.decode(value, type=_Fields)
            if isinstance(value, str)
            else msgspec.convert(value, type=_Fields)
        )
        return _config(fields)
    except ValueError as error:
        raise ValueError(f"{error}; write it like {EXAMPLE}, or off") from None


def _config(fields: _Fields) -> SpeculationConfig:
    """What is not said follows what is: the lengths of a match are a range."""
    usual = SpeculationConfig(1)
    most, least = fields.prompt_lookup_max, fields.prompt_lookup_min
    if most is None:
        most = usual.prompt_lookup_max if least is None else max(least, usual.prompt_lookup_max)
    if least is None:
        least = min(most, usual.prompt_lookup_min)
    return SpeculationConfig(fields.num_speculative_tokens, most, least, fields.disable_by_batch_size)
