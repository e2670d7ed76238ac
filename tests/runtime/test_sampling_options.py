"""Ranges, defaults and windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.sampling_options import OptionError, SamplingDefaults, SamplingOptions, resolve

DEFAULTS = SamplingDefaults(
    temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, end_token_ids=(7, 8), vocab_size=100, max_model_len=1000
)


def test_what_is_not_said_comes_from_the_model() -> None:
    params = resolve(SamplingOptions(), DEFAULTS, num_prompt=10, fallback_seed=99)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.6, 0.9, 50, 0.1)
    assert params.seed == 99
    assert params.max_tokens == 990
    assert params.stop_token_ids == (7, 8)


def test_what_is_said_counts_even_when_it_is_zero() -> None:
    said = SamplingOptions(temperature=0, top_k=0, min_p=0, seed=0, stop_token_ids=(8, 9), ignore_eos=True)
    params = resolve(said, DEFAULTS, num_prompt=10, fallback_seed=99)
    assert (params.temperature, params.top_k, params.min_p, params.seed) == (0, 0, 0, 0)
    assert params.stop_token_ids == (8, 9)


@given(
    num_prompt=st.integers(1, 999),
    max_tokens=st.none() | st.integers(-5, 1100),
    seed=st.none() | st.integers(-(2**65), 2**65),
    top_k=st.none() | st.integers(-5, 200),
    temperature=st.none() | st.floats(),
    top_p=st.none() | st.floats(),
)
def test_params_are_in_range_or_refused(
    num_prompt: int,
    max_tokens: int | None,
    seed: int | None,
    top_k: int | None,
    temperature: float | None,
    top_p: float | None,
) -> None:
    options = SamplingOptions(
        max_tokens=max_tokens, seed=seed, top_k=top_k, temperature=temperature, top_p=top_p
    )
    params = refusal = None
    try:
        params = resolve(options, DEFAULTS, num_prompt=num_prompt, fallback_seed=1)
    except OptionError as error:
        refusal = error
    if params is None:
        assert refusal is not None
        assert getattr(options, refusal.field) is not None
        assert refusal.field in str(refusal)
        return
    assert 1 <= params.max_tokens <= 1000 - num_prompt
    assert max_tokens in (None, params.max_tokens)
    assert 0 <= params.seed < 2**64
    assert 0 <= params.top_k <= 100
    assert 0 <= params.temperature <= 100
    assert 0 < params.top_p <= 1


def test_the_name_that_was_used_is_the_one_in_the_message() -> None:
    with pytest.raises(OptionError) as caught:
        resolve(
            SamplingOptions(max_tokens=991),
            DEFAULTS,
            num_prompt=10,
            fallback_seed=0,
            max_tokens_field="max_completion_tokens",
        )
    assert caught.value.field == "max_completion_tokens"
    for number in ("10 tokens", "991", "1001", "1000", "990"):
        assert number in str(caught.value)
