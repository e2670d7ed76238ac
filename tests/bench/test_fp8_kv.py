"""The bench of the e4m3 cache's error: its measures by hand, and a run on a tiny model."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.fp8_kv import all_logits, compare
from deeproot.engine.kv_scales import measure_kv_scales
from deeproot.engine.loading import load_model


def test_measures_by_hand() -> None:
    """Two positions over two tokens: probabilities 3/4 and 1/4 against 1/2 each, then the same."""
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 1.0]])
    other = torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    found = compare(logits, other, np.array([0, 1], np.int32))
    assert found.relative_error == pytest.approx(math.log(3.0))
    assert found.divergence == pytest.approx((0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)) / 2)
    assert found.loss == pytest.approx(math.log(4.0))
    assert found.other_loss == pytest.approx(math.log(2.0))
    assert compare(other, other, np.array([0, 1], np.int32)).relative_error == 0


def test_an_e4m3_cache_has_an_error_and_chunks_of_the_others_have_none(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    loaded = load_model(tmp_path, "dummy", "float32")
    ids = np.random.default_rng(0).integers(0, 256, 150).astype(np.int32)
    exact = all_logits(loaded, ids, None)
    assert exact.shape == (150, json.loads((tmp_path / "config.json").read_text())["vocab_size"])
    rounded = all_logits(loaded, ids, measure_kv_scales(loaded.model, loaded.dtype, loaded.device))
    assert 1e-4 < compare(rounded, exact, ids).relative_error < 0.1
