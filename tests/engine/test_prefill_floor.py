"""The floor of a prefill, against the kernels' own figures."""

import pytest

from deeproot.engine.prefill_floor import DEVICE_NAMES, DenseModel, prefill_floor_seconds
from deeproot.kernels.cost import prefill_estimate
from deeproot.kernels.devices import DEVICES

MODEL = DenseModel(7_000_000_000, 32, 4096)


def test_a_long_prompt_is_bound_by_flop_and_a_single_token_by_the_weights() -> None:
    device = DEVICES["H100 SXM"]
    tokens = 32_768
    whole = prefill_estimate(tokens, 32, 4096, parameters=7_000_000_000)
    masked = whole.linear + whole.attention * (tokens + 1) / (2 * tokens)  # the causal half
    assert prefill_floor_seconds(tokens, 0, MODEL, "H100 SXM") == pytest.approx(masked / device.bf16_flops)
    assert prefill_floor_seconds(1, 0, MODEL, "H100 SXM") == pytest.approx(14e9 / device.bytes_per_s)


def test_cached_tokens_cost_attention_only() -> None:
    full = prefill_floor_seconds(20_000, 0, MODEL, "H100 SXM")
    parts = prefill_floor_seconds(12_000, 0, MODEL, "H100 SXM") + prefill_floor_seconds(
        8_000, 12_000, MODEL, "H100 SXM"
    )
    assert parts == pytest.approx(full)
    assert prefill_floor_seconds(0, 5, MODEL, "H100 SXM") == 0.0


def test_odd_input_is_refused() -> None:
    assert "H100 SXM" in DEVICE_NAMES
    with pytest.raises(ValueError, match="device is 'abacus'; give one of"):
        prefill_floor_seconds(1, 0, MODEL, "abacus")
    with pytest.raises(ValueError, match="layers is 0"):
        DenseModel(1, 0, 1)
