"""Weights that stay quantised, in the decoder that runs in C++, against transformers with what they mean in float32."""

from pathlib import Path

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from tests.engine.batches import Chunk, make_batch
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import hf_logits, make_runner, relative_error, tiny_llama, tiny_model
from tests.engine.sequences import random_ids, run_greedy, run_in_steps, scattered_pages
from tests.engine.test_gguf_families import MODELS
from transformers import PreTrainedModel

from deeproot.engine.attention_choice import AttentionName, AttentionNeeds
from deeproot.engine.cpu_decoder import CpuDecoder
from deeproot.engine.loading import load_model
from deeproot.engine.quantization import Quantization, grouped_problem
from deeproot.engine.runner import Runner
from deeproot.engine.weights import WeightError
from deeproot.kernels.cpu.build import Abilities, abilities_here

compiled = pytest.mark.skipif(not abilities_here().bf16, reason="this CPU does not compute in bfloat16")
PAGE_SIZE = 16
KINDS = [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0]
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {family: {**changes, **SIZES} for family, changes in {"llama": {}, **MODELS}.items()}
BOUND = 0.02
"""Of logits: activations and cache are in bfloat16, weights of many rows, too."""


def quantised_runner(path: Path, quantization: Quantization = "gguf", num_pages: int = 64) -> Runner:
    runner = make_runner(
        path, dtype="bfloat16", attention="cpu", quantization=quantization, num_pages=num_pages
    )
    assert isinstance(runner.model, CpuDecoder)
    return runner


def as_meant(model: PreTrainedModel, kind: GGMLQuantizationType) -> PreTrainedModel:
    """The same model with the values that its weights have once they are quantised."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2 and parameter.shape[1] % 32 == 0:
                stored = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(stored, kind)))
    return model


def check(runner: Runner, reference: PreTrainedModel) -> None:
    [ids] = random_ids(90)
    [pages] = scattered_pages([ids], PAGE_SIZE)
    expected = hf_logits(reference, ids)
    assert relative_error(run_in_steps(runner, ids, pages, [90]), expected) < BOUND
    assert relative_error(run_in_steps(runner, ids, pages, [40, 1, 5, 1, 43]), expected) < BOUND
    assert relative_error(run_in_steps(runner, ids, pages, [1] * 90), expected) < BOUND


@compiled
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers(tmp_path: Path, family: str, kind: GGMLQuantizationType) -> None:
    model = tiny_model(None, family, **FAMILIES[family])
    path = write_gguf(tmp_path / "m.gguf", family, model, kind)
    check(quantised_runner(path), as_meant(model, kind))


@compiled
def test_a_folder_rounded_to_int8(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path, **SIZES, attention_bias=True, mlp_bias=True)
    check(quantised_runner(tmp_path, "int8"), as_meant(model, GGMLQuantizationType.Q8_0))


@compiled
def test_int8_of_a_file_in_4_bits_rounds_what_these_mean(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path, **SIZES)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, GGMLQuantizationType.Q4_1)
    reference = as_meant(as_meant(model, GGMLQuantizationType.Q4_1), GGMLQuantizationType.Q8_0)
    check(quantised_runner(path, "int8"), reference)


@compiled
def test_weights_that_are_no_whole_groups_stay_dense(tmp_path: Path) -> None:
    """The MLP's inner size is no multiple of 32, so that `down` is not rounded and the others are."""
    model = tiny_llama(tmp_path, **{**SIZES, "intermediate_size": 88})
    check(quantised_runner(tmp_path, "int8"), as_meant(model, GGMLQuantizationType.Q8_0))


@compiled
def test_a_decoding_row_depends_on_nothing_beside_it(tmp_path: Path) -> None:
    """Bit by bit the same logits alone, with up to 11 others, and before any prompts."""
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_llama(tmp_path, **SIZES), KINDS[1])
    runner = quantised_runner(path, num_pages=120)
    sequences = random_ids(*range(3, 15), 40, 70)
    pages = scattered_pages(sequences, PAGE_SIZE)
    chunks = [Chunk(ids, len(ids) - 1, own) for ids, own in zip(sequences[:12], pages, strict=False)]
    prompts = [Chunk(ids, 0, own) for ids, own in zip(sequences[12:], pages[12:], strict=True)]
    for ids, own in zip(sequences, pages, strict=True):
        runner.logits(make_batch([Chunk(ids, 0, own)], PAGE_SIZE))
    alone = torch.cat([runner.logits(make_batch([chunk], PAGE_SIZE)) for chunk in chunks])
    for size in (2, 9, 12):
        assert torch.equal(runner.logits(make_batch(chunks[:size], PAGE_SIZE)), alone[:size])
    for size in (1, 7, 10):
        together = runner.logits(make_batch(chunks[:size] + prompts, PAGE_SIZE))
        assert torch.equal(together[:size], alone[:size])


@compiled
def test_the_real_model_keeps_its_bytes_and_its_words(smollm2_path: Path) -> None:
    """Packed weights are as large as the file's; greedy tokens are those of a run without a cache."""
    runner = quantised_runner(smollm2_path)
    assert isinstance(runner.model, CpuDecoder)
    tensors = gguf.GGUFReader(smollm2_path).tensors
    assert runner.model.packed_bytes == sum(
        int(tensor.n_bytes) for tensor in tensors if len(tensor.shape) == 2
    )
    prompt = [504, 3575, 282, 4649, 314]
    [written] = run_greedy(runner, [prompt], 24)
    done = list(prompt)
    for _ in range(24):
        # The whole sequence anew, in pages that nothing was computed in before.
        [pages] = scattered_pages([done], PAGE_SIZE)
        logits = runner.logits(make_batch([Chunk(done, 0, pages)], PAGE_SIZE))
        done.append(int(logits[-1].argmax()))
    assert written == done[len(prompt) :]


def test_the_model_of_torch_computes_the_same_weights(tmp_path: Path) -> None:
    """In float32, anew at each call: the reference of the bench."""
    model = tiny_llama(tmp_path, **SIZES)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, KINDS[0])
    [ids] = random_ids(30)
    loaded = load_model(path, dtype="float32", quantization="gguf")
    plain = make_runner(path)
    runner = Runner(loaded.model, plain.pool, plain._attention)
    [pages] = scattered_pages([ids], PAGE_SIZE)
    assert torch.equal(run_in_steps(runner, ids, pages, [30]), run_in_steps(plain, ids, pages, [30]))


def test_a_model_that_has_no_such_tensors_is_named(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path, **SIZES)
    path = write_gguf(tmp_path / "m.gguf", "llama", model)
    for given in (path, tmp_path):
        with pytest.raises(WeightError, match="no GGUF file with tensors in Q4_0, Q4_1 or Q8_0"):
            load_model(given, load_format="gguf" if given == path else "safetensors", quantization="gguf")
        assert not load_model(
            given, load_format="gguf" if given == path else "safetensors", quantization="auto"
        ).grouped


def test_another_backend_than_the_compiled_one_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_llama(tmp_path, **SIZES), KINDS[1])
    refused: list[tuple[str, AttentionName]] = [("bfloat16", "torch"), ("float32", "cpu")]
    for dtype, attention in refused:
        with pytest.raises(ValueError, match="use --quantization none"):
            make_runner(path, dtype=dtype, attention=attention, quantization="gguf")


def test_why_it_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")

    def problem(needs: AttentionNeeds, attention: str = "auto") -> str:
        return grouped_problem(needs, attention) or ""

    assert "--device cpu" in problem(AttentionNeeds(cuda, torch.bfloat16))
    monkeypatch.setattr("deeproot.engine.quantization.abilities_here", lambda: Abilities(bf16=True))
    assert "--dtype bfloat16" in problem(AttentionNeeds(cpu, torch.float32))
    assert "attention is torch's (asked for)" in problem(AttentionNeeds(cpu, torch.bfloat16), "torch")
    assert "not cpu" in problem(AttentionNeeds(cpu, torch.bfloat16, deterministic=True))
    assert "not known" in problem(AttentionNeeds(cpu, torch.bfloat16), "nothing")
    monkeypatch.setattr("deeproot.engine.quantization.abilities_here", lambda: Abilities())
    assert "AVX-512" in problem(AttentionNeeds(cpu, torch.bfloat16))
