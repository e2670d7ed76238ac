"""The decoder that runs in C++ against transformers in float32, family by family, in both forms of its products."""

from pathlib import Path

import pytest
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import hf_logits, make_runner, relative_error, tiny_llama, tiny_model
from tests.engine.sequences import random_ids, run_in_steps, scattered_pages
from tests.engine.test_families import ALL, settings_of
from tests.helpers.cpu_forms import matrix_forms, needs_bf16
from transformers import PreTrainedModel

from deeproot.engine.cpu_decoder import CpuDecoder
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import faster_model, load_model, make_attention
from deeproot.engine.models.decoder import Decoder
from deeproot.engine.runner import Runner
from deeproot.kernels.cpu.native import CpuLibrary, Matrix

pytestmark = needs_bf16
MATRIX = matrix_forms("avx512_bf16")
PAGE_SIZE = 16
"""As in make_runner."""


def cpu_runner(path: Path, num_pages: int = 64) -> Runner:
    runner = make_runner(path, num_pages=num_pages, dtype="bfloat16", attention="cpu")
    assert isinstance(runner.model, CpuDecoder)
    return runner


def rounded(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in float32 with weights that bfloat16 can hold, as ours are."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


@pytest.mark.parametrize("matrix", MATRIX)
@pytest.mark.parametrize("name", ALL)
def test_logits_equal_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, matrix: Matrix
) -> None:
    family, changes = settings_of(name)
    reference = rounded(tiny_model(tmp_path, family, **changes))
    monkeypatch.setattr("deeproot.engine.attention_choice.CpuLibrary", lambda: CpuLibrary(matrix=matrix))
    runner = cpu_runner(tmp_path)
    [ids] = random_ids(90)
    [pages] = scattered_pages([ids], PAGE_SIZE)
    expected = hf_logits(reference, ids)
    # What the same weights, activations and cache in bfloat16 cost where torch computes.
    torchs = relative_error(run_in_steps(make_runner(tmp_path, dtype="bfloat16"), ids, pages, [90]), expected)
    assert torchs < 0.1
    bound = 1.5 * torchs
    assert relative_error(run_in_steps(runner, ids, pages, [90]), expected) < bound
    # Chunks, single tokens and cached pages change nothing but roundings.
    assert relative_error(run_in_steps(runner, ids, pages, [40, 1, 5, 1, 43]), expected) < bound


def test_sizes_that_fill_no_panel(tmp_path: Path) -> None:
    changes = {"vocab_size": 101, "hidden_size": 40, "intermediate_size": 56, "num_attention_heads": 5}
    changes |= {"num_key_value_heads": 1, "head_dim": 10, "attention_bias": True, "mlp_bias": True}
    reference = rounded(tiny_llama(tmp_path, **changes))
    [ids] = random_ids(50)
    [pages] = scattered_pages([ids], PAGE_SIZE)
    logits = run_in_steps(cpu_runner(tmp_path), ids, pages, [50])
    assert relative_error(logits, hf_logits(reference, ids)) < 0.015


def test_a_decoding_row_depends_on_nothing_beside_it(tmp_path: Path) -> None:
    """Bit by bit the same logits alone and in batches of any size."""
    tiny_llama(tmp_path)
    runner = cpu_runner(tmp_path, num_pages=120)
    sequences = random_ids(*range(3, 43))
    pages = scattered_pages(sequences, PAGE_SIZE)
    chunks = [Chunk(ids, len(ids) - 1, own) for ids, own in zip(sequences, pages, strict=True)]
    for ids, own in zip(sequences, pages, strict=True):
        runner.logits(make_batch([Chunk(ids, 0, own)], PAGE_SIZE))
    alone = torch.cat([runner.logits(make_batch([chunk], PAGE_SIZE)) for chunk in chunks])
    for size in (2, 16, 17, 40):
        together = runner.logits(make_batch(chunks[:size], PAGE_SIZE))
        assert torch.equal(together, alone[:size])


def test_weights_are_not_held_twice(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    loaded = load_model(tmp_path, dtype="bfloat16")
    pool = KVPool(loaded.config.kv_layout(PAGE_SIZE, loaded.dtype), 4)
    model = loaded.model
    assert isinstance(model, Decoder)
    assert isinstance(faster_model(loaded, make_attention(loaded.config, pool, "cpu")), CpuDecoder)
    for layer in model.layers:
        linears = layer.attention.qkv, layer.attention.out, layer.mlp.gate_up, layer.mlp.down
        assert all(linear.weight.numel() == 0 for linear in linears)
    assert model.head.numel() == 0


def test_a_token_that_is_not_in_the_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    runner = cpu_runner(tmp_path)
    for wrong in (96, -1, 2**31 - 1):
        with pytest.raises(IndexError, match=f"token id {wrong} is not in the vocabulary"):
            runner.logits(make_batch([Chunk([1, wrong, 2], 0, [0])], PAGE_SIZE))
    assert runner.logits(make_batch([Chunk([1, 2], 0, [0])], PAGE_SIZE)).isfinite().all()


def test_another_backend_is_refused(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    runner = cpu_runner(tmp_path)
    other = make_runner(tmp_path, dtype="bfloat16", attention="cpu")
    ids = torch.tensor([1])
    with pytest.raises(ValueError, match="that it was made for"):
        runner.model.forward(ids, ids, other._attention)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_other_dtypes_run_by_torch_with_the_compiled_attention(tmp_path: Path, dtype: str) -> None:
    reference = tiny_llama(tmp_path)
    runner = make_runner(tmp_path, dtype=dtype, attention="cpu")
    assert not isinstance(runner.model, CpuDecoder)
    [ids] = random_ids(60)
    [pages] = scattered_pages([ids], PAGE_SIZE)
    error = relative_error(run_in_steps(runner, ids, pages, [30, 1, 29]), hf_logits(reference, ids))
    assert error < {"float32": 1e-5, "float16": 5e-3}[dtype]
