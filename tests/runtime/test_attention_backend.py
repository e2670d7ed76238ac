"""The choice of an attention backend and of the KV cache's dtype, from the options to the answer."""

import logging
from pathlib import Path
from typing import Any

import pytest

from deeproot.runtime.engine_setup import load_engine
from deeproot.runtime.llm import LLM
from deeproot.runtime.options import EngineOptions, SetupError
from deeproot.runtime.sampling_options import SamplingOptions

from .tiny_model import write_tiny_model

PROMPTS = ["The quick brown fox jumps over", "The quick brown fox", "A"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Heads of a size that there are kernels for."""
    return write_tiny_model(tmp_path, head_dim=64, num_attention_heads=2, num_key_value_heads=1)


def options(model: Path, **changes: Any) -> EngineOptions:
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "dtype": "float32",
        "device": "cpu",
        "max_model_len": 96,
        "kv_cache_memory_bytes": 2**20,
    }
    return EngineOptions(model=str(model), **{**settings, **changes})


def answers(model: Path, **changes: Any) -> list[tuple[int, ...]]:
    with LLM(options(model, **changes)) as llm:
        done = llm.generate(PROMPTS, SamplingOptions(max_tokens=4, temperature=0, ignore_eos=True))
        assert [answer.finish_reason for answer in done] == ["length"] * 3
        return [answer.token_ids for answer in done]


def test_triton_in_the_interpreter_answers_as_torch_does(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the tiles that ship: float32 needs no mending of the interpreter."""
    with caplog.at_level(logging.INFO, logger="deeproot"):
        assert answers(model, attention_backend="triton") == answers(model)
    assert "attention: triton (asked for)" in caplog.text
    assert "attention: cpu (C++ compiled for this CPU, which reads pages in place; not triton:" in caplog.text


def test_what_the_engine_says_of_itself(model: Path) -> None:
    assert load_engine(options(model)).info.attention == "cpu"


def test_e4m3_holds_twice_as_much_and_answers_alike(model: Path) -> None:
    engines = {
        kind: load_engine(options(model, kv_cache_dtype=kind, dtype="bfloat16")) for kind in ("auto", "fp8")
    }
    pages = {kind: engine.scheduler.pool.num_pages for kind, engine in engines.items()}
    assert pages["fp8"] == 2 * pages["auto"]
    k_scale, v_scale = engines["fp8"].scheduler.pool.scales(0)
    assert k_scale is not None
    assert v_scale is not None
    assert (k_scale > 0).all()
    assert k_scale.tolist() != [1.0], "the scale was not measured"
    assert answers(model, kv_cache_dtype="fp8")[2] == answers(model)[2]


def test_what_a_backend_cannot_do_is_said_at_start(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    with pytest.raises(SetupError, match="no kernels for heads of 8, only for 64"):
        load_engine(options(model, attention_backend="triton"))
    with pytest.raises(SetupError, match="--attention-backend flash: it needs a CUDA GPU"):
        load_engine(options(model, attention_backend="flash"))
