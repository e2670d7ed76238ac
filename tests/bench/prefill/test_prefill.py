"""`deeproot bench prefill` with a tiny model, and its floor beside sums by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.prefill.floor import Shapes, closed_formula, floor_of, flops
from deeproot.bench.prefill.points import usual_lengths
from deeproot.bench.prefill.rig import Rig, random_ids
from deeproot.engine.config import ModelConfig, RopeConfig
from deeproot.kernels.devices import Device
from deeproot.runtime.cli import main
from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.options import EngineOptions

from ...runtime.tiny_model import write_tiny_model

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=8,
    intermediate_size=12,
    num_layers=3,
    num_qo_heads=4,
    num_kv_heads=2,
    head_dim=6,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope=RopeConfig(6, 1e4),
    layer_windows=(None, 4, None),
)
COMPUTE_ONLY = Device("x", 1e30, 1.0, None, 1e30, "")
BYTES_ONLY = Device("x", 1.0, 1e30, None, 1e30, "")


def test_weights_are_those_of_the_model() -> None:
    shapes = Shapes.of(CONFIG)
    q, k, v, o = 8 * 24, 8 * 12, 8 * 12, 24 * 8
    assert shapes == Shapes(q + k + v + o + 3 * 8 * 12, 8 * 100)
    assert closed_formula(5, CONFIG) == 24 * 5 * 3 * 64 + 4 * 25 * 3 * 8


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 3), st.integers(1, 25))
def test_flops_pair_by_pair_and_the_floor_beside_them(
    new: int, cached: int, sequences: int, chunk: int
) -> None:
    """Every query looks at every key that it may see, counted one by one."""
    shapes = Shapes.of(CONFIG)
    pairs = 0
    for window in (64, 4, 64):
        for at in range(cached, cached + new):
            pairs += sum(at - window < key <= at for key in range(at + 1))
    expected = 2 * new * 3 * shapes.layer_weights + 4 * pairs * 4 * 6 + 2 * shapes.head_weights
    assert flops(new, cached, CONFIG) == expected
    assert flops(new, cached, CONFIG, sequences) == sequences * expected
    # Logits of each step's sequences; only the last chunk's are used, but no step can leave them out.
    in_steps = floor_of(new, cached, CONFIG, COMPUTE_ONLY, chunk, sequences)
    assert in_steps >= sequences * expected - 1e-6
    assert floor_of(new, cached, CONFIG, COMPUTE_ONLY, 10**6, sequences) == pytest.approx(
        sequences * expected
    )
    weights = 2 * (3 * shapes.layer_weights + shapes.head_weights)
    steps = -(-new * sequences // chunk)
    assert floor_of(new, cached, CONFIG, BYTES_ONLY, chunk, sequences) >= steps * weights


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk is 0"):
        floor_of(1, 0, CONFIG, BYTES_ONLY, 0)


def test_usual_lengths_end_at_the_window() -> None:
    assert usual_lengths(1000) == (128, 256, 512, 999)
    assert usual_lengths(100) == (99,)


def test_the_rig_reuses_and_computes_what_it_says(tmp_path: Path) -> None:
    options = EngineOptions(
        model=str(write_tiny_model(tmp_path / "m")),
        load_format="dummy",
        kv_cache_memory_bytes=2**21,
        max_num_batched_tokens=64,
        page_size=16,
    )
    rig = Rig(load_engine(options))
    rng = np.random.default_rng(0)
    prompt = random_ids(rng, 100, rig.config.vocab_size)
    first = rig.run([prompt])
    assert (first.cached, first.computed, first.prompt_tokens) == ((0,), 100, 100)
    again = rig.run([np.append(prompt[:70], prompt[70] ^ 1)])
    assert again.cached == (70,)
    rig.clear()
    both = rig.run([prompt, prompt[::-1].copy()])
    assert both.cached == (0, 0)
    assert len(both.ttft_s) == 2
    assert both.seconds == max(both.ttft_s)
    rig.with_chunk(20)
    assert rig.run([prompt]).cached == (0,)
    for chunk in (0, 65):
        with pytest.raises(ValueError, match="chunk is"):
            rig.with_chunk(chunk)


def flags(folder: Path, *more: str) -> list[str]:
    model = write_tiny_model(folder / "m")
    memory = ["--kv-cache-memory-bytes", "2MiB", "--max-num-batched-tokens", "128"]
    return ["bench", "prefill", "--model", str(model), "--load-format", "dummy", *memory, *more]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(flags(tmp_path, "--lengths", "64", "200", "--rounds", "2", "--out", str(out), "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads((out / "result.json").read_text()) == found
    metrics = {metric["name"]: metric for metric in found["metrics"]}
    by_length = [m for name, m in metrics.items() if name.startswith("TTFT") and "(length" in name]
    assert len(by_length) == 2 * 4
    assert all(len(m["samples"]) == 2 and min(m["samples"]) > 0 for m in by_length)
    cached = {name: m["samples"] for name, m in metrics.items() if name.startswith("cached")}
    assert cached["cached, 200 tokens, 90% cached, chunks of 128 (length and cached share)"] == [180.0]
    assert cached["cached, 64 tokens, 99% cached, chunks of 128 (length and cached share)"] == [63.0]
    assert {chart["key"] for chart in found["charts"]} == {"ttft", "of_floor"}
    assert any(note.startswith("Energy") for note in found["notes"])


def test_the_quick_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(tmp_path, "--quick")) == 0
    shown = capsys.readouterr().out
    assert "| 512" in shown
    assert "99%" not in shown.split("By chunk size")[0].split("GFLOP")[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--lengths", "99999"], "--lengths 99999"),
        (["--chunks", "4096"], "--chunks 4096"),
    ],
)
def test_what_does_not_fit_is_named(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags(tmp_path, *more)) == 2
    assert said in capsys.readouterr().err
