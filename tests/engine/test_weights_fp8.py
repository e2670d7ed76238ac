"""Checkpoints in e4m3 with a scale a tile, against dequantisation one number at a time in float64."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import hf_logits, make_runner, relative_error, tiny_llama

from deeproot.engine.kv_pool import FP8
from deeproot.engine.layers import Linear
from deeproot.engine.loading import load_model, read_config
from deeproot.engine.models.llama import LlamaForCausalLM as Llama
from deeproot.engine.weight_files import SafetensorsStore
from deeproot.engine.weights import StoredWeights, WeightError
from deeproot.engine.weights_fp8 import TiledFP8Store, dequantise

IDS = list(range(1, 40))
Q = "model.layers.1.self_attn.q_proj.weight"


def quantise(weight: torch.Tensor, tile: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight as such checkpoints keep it, tile by tile."""
    rows, columns = weight.shape
    kept = torch.empty(weight.shape, dtype=FP8)
    scales = torch.empty(-(-rows // tile[0]), -(-columns // tile[1]))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * tile[0], (i + 1) * tile[0]), slice(j * tile[1], (j + 1) * tile[1]))
            scales[i, j] = weight[part].abs().max() / 448
            kept[part] = (weight[part] / scales[i, j]).to(FP8)
    return kept, scales


def one_by_one(kept: torch.Tensor, scales: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    out = torch.empty(kept.shape, dtype=torch.float64)
    numbers, factors = kept.float().tolist(), scales.double().tolist()
    for i, row in enumerate(numbers):
        for j, number in enumerate(row):
            out[i, j] = number * factors[i // tile[0]][j // tile[1]]
    return out


def make_checkpoint(
    folder: Path, tile: tuple[int, int], model: dict[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """A tiny Llama whose linear weights but the head are quantised. Returns these in float64 as they should be read."""
    tiny_llama(folder, **(model or {}))
    tensors = load_file(folder / "model.safetensors")
    wanted: dict[str, torch.Tensor] = {}
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        kept, scales = quantise(tensors[name], tile)
        wanted[name] = one_by_one(kept, scales, tile)
        tensors[name], tensors[f"{name}_scale_inv"] = kept, scales
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": list(tile),
        "modules_to_not_convert": ["lm_head"],
    }
    path.write_text(json.dumps(config))
    return wanted


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("tile", [(128, 128), (32, 32), (16, 48), (7, 5)])
def test_weights_are_what_they_stand_for(tmp_path: Path, tile: tuple[int, int]) -> None:
    """Tiles larger than the weight, with a rest at the end, of sides that differ."""
    wanted = make_checkpoint(tmp_path, tile)
    layers = load_model(tmp_path, dtype="float32").model.layers
    for index, layer in enumerate(layers):
        prefix = f"model.layers.{index}"
        qkv = torch.cat([wanted[f"{prefix}.self_attn.{name}_proj.weight"] for name in "qkv"])
        torch.testing.assert_close(layer.attention.qkv.weight, qkv.float(), rtol=1e-7, atol=0)
        down = wanted[f"{prefix}.mlp.down_proj.weight"]
        torch.testing.assert_close(layer.mlp.down.weight, down.float(), rtol=1e-7, atol=0)


def test_logits_are_those_of_the_weights_that_are_meant(tmp_path: Path) -> None:
    wanted = make_checkpoint(tmp_path, (32, 32))
    model = tiny_llama(tmp_path / "plain")
    plain = hf_logits(model, IDS)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in wanted:
                parameter.copy_(wanted[name])
    logits = make_runner(tmp_path).logits(make_batch([Chunk(IDS, 0, [0, 1, 2], all_logits=True)], 16))
    assert relative_error(logits, hf_logits(model, IDS)) < 1e-4
    assert relative_error(logits, plain) > 1e-3, "quantisation changed nothing: the test is too weak"


def test_scales_may_be_bfloat16_and_the_model_too(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, (32, 32))
    tensors = load_file(tmp_path / "model.safetensors")
    scales = tensors[f"{Q}_scale_inv"].bfloat16()
    change(tmp_path, f"{Q}_scale_inv", scales)
    weight = load_model(tmp_path, dtype="bfloat16").model.layers[1].attention.qkv.weight
    assert torch.equal(weight[:48], one_by_one(tensors[Q], scales, (32, 32)).float().bfloat16())


def test_one_tile_by_hand() -> None:
    kept = torch.tensor([[1.0, -2.0], [0.5, 448.0]]).to(FP8)
    assert dequantise(kept, torch.tensor([[3.0], [2.0]]), (1, 2)).tolist() == [[3.0, -6.0], [1.0, 896.0]]


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, (32, 32))
    change(tmp_path, f"{Q}_scale_inv", torch.ones(2, 3))
    with pytest.raises(WeightError, match=rf"{Q}_scale_inv' has shape \[2, 3\].*needs \[2, 2\]"):
        load_model(tmp_path)
    change(tmp_path, f"{Q}_scale_inv", None)
    with pytest.raises(WeightError, match=f"{Q}' is e4m3 but '{Q}_scale_inv' is missing"):
        load_model(tmp_path)


def test_e4m3_in_a_folder_that_does_not_say_so_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, (32, 32))
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    with pytest.raises(WeightError, match="dtype F8_E4M3"):
        load_model(tmp_path)


def test_weights_for_fp8_products_are_taken_as_they_are(tmp_path: Path) -> None:
    """What a Hopper GPU is given, built on the CPU: the layers' weights and scales stand for the same numbers."""
    sizes = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 128, "num_attention_heads": 2}
    tile = (128, 128)
    wanted = make_checkpoint(tmp_path, tile, model=sizes)
    store = TiledFP8Store(SafetensorsStore(tmp_path, fp8=True), tile)
    weights = StoredWeights(store, torch.bfloat16, torch.device("cpu"), fp8=store)
    model = Llama(read_config(tmp_path), weights, torch.device("cpu"))
    for index, layer in enumerate(model.layers):
        prefix = f"model.layers.{index}"
        for linear, names in (
            (layer.attention.qkv, [f"{prefix}.self_attn.{name}_proj.weight" for name in "qkv"]),
            (layer.mlp.down, [f"{prefix}.mlp.down_proj.weight"]),
        ):
            assert linear.weight.dtype == FP8
            rows, columns = linear.weight.shape
            assert linear.scales.shape == (4 * -(-columns // 512), rows // 128)
            scales = linear.scales.t()[:, : columns // 128]
            assert torch.equal(
                dequantise(linear.weight, scales, tile), torch.cat([wanted[name] for name in names]).float()
            )
    assert model.head.dtype == torch.bfloat16
    x = torch.empty(3, 256, dtype=torch.bfloat16, device="meta")
    linear = model.layers[0].attention.qkv
    assert Linear(linear.weight.to("meta"), None, linear.scales.to("meta"))(x).shape == (3, 768)


def test_layers_whose_sizes_do_not_fit_are_dequantised(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, (128, 128))
    store = TiledFP8Store(SafetensorsStore(tmp_path, fp8=True), (128, 128))
    weights = StoredWeights(store, torch.bfloat16, torch.device("cpu"), fp8=store)
    model = Llama(read_config(tmp_path), weights, torch.device("cpu"))
    assert model.layers[0].attention.qkv.weight.dtype == torch.bfloat16
