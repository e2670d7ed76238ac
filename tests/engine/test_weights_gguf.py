"""Llama in GGUF files: order of rows, rotary divisors, surplus tensors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.gguf_files import neighbours_from_halves, write_gguf
from tests.engine.hf import hf_logits, relative_error, tiny_llama
from tests.engine.test_weights import IDS, logits_of

from deeproot.engine.loading import load_model
from deeproot.engine.weights import WeightError
from deeproot.engine.weights_gguf import halves_from_neighbours


@pytest.mark.parametrize(
    "changes", [{}, {"num_key_value_heads": 6}, {"attention_bias": True, "mlp_bias": True}]
)
def test_gguf_equals_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_llama(tmp_path, **changes)
    path = write_gguf(tmp_path / "m.gguf", "llama", model)
    assert relative_error(logits_of(path), hf_logits(model, IDS)) < 1e-4


def test_gguf_with_llama3_rope_equals_transformers(tmp_path: Path) -> None:
    """The converter stores the scaling as divisors of the frequencies."""
    llama3 = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    model = tiny_llama(tmp_path, rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **llama3})
    plain = 500.0 ** -(np.arange(0, 8, 2) / 8)
    divisors = (plain / model.model.rotary_emb.inv_freq.double().numpy()).astype(np.float32)
    assert divisors.max() > 7
    path = write_gguf(tmp_path / "m.gguf", "llama", model, rope_freqs__weight=divisors)
    assert relative_error(logits_of(path), hf_logits(model, IDS)) < 1e-4


def test_row_order_is_undone() -> None:
    rows = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    stored = torch.from_numpy(neighbours_from_halves(rows, 3))
    assert torch.equal(halves_from_neighbours(stored, 3), torch.from_numpy(rows))
    assert torch.equal(halves_from_neighbours(stored[:, 0], 3), torch.from_numpy(rows[:, 0]))


def test_gguf_with_unknown_tensors_is_refused(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, blk__1__attn_q_norm__weight=np.ones(8, np.float32))
    with pytest.raises(WeightError, match=r"does not use: blk\.1\.attn_q_norm\.weight"):
        load_model(path)
