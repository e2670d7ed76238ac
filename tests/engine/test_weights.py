"""Weight sources and loading: what arrives, and how every defect is reported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.batches import Chunk, make_batch
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import hf_logits, make_runner, relative_error, tiny_llama, tiny_model

from deeproot.engine.gguf import GGUFError
from deeproot.engine.loading import DTYPES, LoadFormat, is_gguf, load_model, resolve_dtype
from deeproot.engine.models.llama import LlamaForCausalLM as Llama
from deeproot.engine.weights import DummyWeights, WeightError

INDEX = "model.safetensors.index.json"
IDS = list(range(1, 40))


def logits_of(path: Path) -> torch.Tensor:
    return make_runner(path).logits(make_batch([Chunk(IDS, 0, [0, 1, 2], all_logits=True)], 16))


def change_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    """Set or (by None) remove tensors of a one-file model; `__` stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / "model.safetensors")


def test_sharded_equals_single(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "one")
    tiny_llama(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert torch.equal(logits_of(tmp_path / "many"), logits_of(tmp_path / "one"))
    assert relative_error(logits_of(tmp_path / "many"), hf_logits(model, IDS)) < 1e-4


def test_a_single_file_of_another_name(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    expected = logits_of(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    assert torch.equal(logits_of(tmp_path), expected)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, torch.float64])
def test_stored_dtypes_are_converted(tmp_path: Path, stored: torch.dtype) -> None:
    tiny_llama(tmp_path)
    tensors = {k: v.to(stored) for k, v in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = load_model(tmp_path, dtype="float32").model
    assert isinstance(model, Llama)
    assert model.embedding.weight.dtype == torch.float32
    assert torch.equal(model.embedding.weight, tensors["model.embed_tokens.weight"].float())


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_to_run_in(tmp_path: Path, name: str) -> None:
    tiny_llama(tmp_path)
    loaded = load_model(tmp_path, dtype=name)
    assert loaded.dtype == DTYPES[name]
    assert isinstance(loaded.model, Llama)
    assert {layer.mlp.down.weight.dtype for layer in loaded.model.layers} == {DTYPES[name]}


def test_dtype_names() -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype("auto", cpu) in (torch.bfloat16, torch.float32)
    assert resolve_dtype("auto", torch.device("cuda")) == torch.bfloat16
    with pytest.raises(ValueError, match="'int8' is not supported; supported: auto, bfloat16"):
        resolve_dtype("int8", cpu)


def test_harmless_surplus_is_ignored(tmp_path: Path) -> None:
    tiny_llama(tmp_path, tie_word_embeddings=True)
    expected = logits_of(tmp_path)
    change_tensors(
        tmp_path,
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4),
        lm_head__weight=torch.ones(96, 48),
    )
    assert torch.equal(logits_of(tmp_path), expected)


DEFECTS: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "missing": ({"model__norm__weight": None}, r"'model.norm.weight' of shape \[48\] is missing"),
    "missing head": ({"lm_head__weight": None}, r"'lm_head.weight' of shape \[96, 48\] is missing"),
    "shape": (
        {"model__layers__1__self_attn__k_proj__weight": torch.ones(48, 48)},
        r"'model.layers.1.self_attn.k_proj.weight' has shape \[48, 48\], the configuration wants \[16, 48\]",
    ),
    "surplus layer": (
        {"model__layers__3__mlp__up_proj__weight": torch.ones(1)},
        "layers.3.mlp.up_proj.weight",
    ),
    "surplus bias": (
        {"model__layers__0__self_attn__q_proj__bias": torch.ones(48)},
        "does not use.*q_proj.bias",
    ),
    "quantised, which the configuration does not say": (
        {"model__layers__0__mlp__up_proj__qweight": torch.ones(4, 4, dtype=torch.int32)},
        "up_proj.qweight' has dtype I32, as weights quantised by GPTQ or AWQ have; supported: BF16, F16",
    ),
    "FP8": (
        {"model__norm__weight": torch.ones(48).to(torch.float8_e4m3fn)},
        "'model.norm.weight' has dtype F8_E4M3; supported: BF16, F16",
    ),
    "integers": (
        {"model__norm__weight": torch.ones(48, dtype=torch.int8)},
        "'model.norm.weight' has dtype I8",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defects_name_the_tensor(tmp_path: Path, name: str) -> None:
    changes, reason = DEFECTS[name]
    tiny_llama(tmp_path)
    change_tensors(tmp_path, **changes)
    with pytest.raises(WeightError, match=reason):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "file", ["../stolen.safetensors", "/etc/passwd", "a/b.safetensors", ".safetensors", "x.bin", "", 7, None]
)
def test_shards_must_stay_in_the_folder(tmp_path: Path, file: Any) -> None:
    tiny_llama(tmp_path / "model", max_shard_size="50KB")
    save_file({"x": torch.ones(1)}, tmp_path / "stolen.safetensors")
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = file
    (tmp_path / "model" / INDEX).write_text(json.dumps(index))
    with pytest.raises(
        WeightError, match=r"'model.norm.weight' must lie in a .safetensors file of the same folder"
    ):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {}}', b"\xff\xfe"]
)
def test_broken_index(tmp_path: Path, content: bytes) -> None:
    tiny_llama(tmp_path, max_shard_size="50KB")
    (tmp_path / INDEX).write_bytes(content)
    with pytest.raises(WeightError, match=INDEX):
        load_model(tmp_path)


def test_incomplete_downloads(tmp_path: Path) -> None:
    tiny_llama(tmp_path, max_shard_size="50KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-10])
    with pytest.raises(WeightError, match=f"{shards[1].name}.*download complete"):
        load_model(tmp_path)
    shards[1].unlink()
    with pytest.raises(WeightError, match=f"{shards[1].name} is missing"):
        load_model(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(WeightError, match=f"no {INDEX}"):
        load_model(tmp_path)


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_truncated_files(tmp_path: Path, length: int) -> None:
    """Within the header's length, the header, and the data."""
    tiny_llama(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(WeightError, match=r"model.safetensors: not a sound safetensors file.*complete\?"):
        load_model(tmp_path)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.999])
def test_truncated_gguf(tmp_path: Path, share: float) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", tiny_llama(tmp_path))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(GGUFError, match=r"m.gguf: .*(is the file cut off\?|cannot fit into a file)"):
        load_model(path)


def test_errors_are_one_line(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    change_tensors(tmp_path, **{f"extra{i}": torch.ones(1) for i in range(9)})
    with pytest.raises(WeightError, match=r"extra0, .* and 4 more; is this another architecture") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_family_under_another_name_is_found_out(tmp_path: Path) -> None:
    """The configuration says Mistral, the weights are Qwen's: their biases are surplus."""
    tiny_model(tmp_path, "qwen2")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["MistralForCausalLM"]}))
    with pytest.raises(WeightError, match=r"does not use.*k_proj\.bias"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Phi3ForCausalLM"]}))
    with pytest.raises(
        WeightError, match=r"'model.layers.0.self_attn.qkv_proj.weight' of shape .* is missing"
    ):
        load_model(tmp_path)


def test_index_that_names_another_shard(tmp_path: Path) -> None:
    tiny_llama(tmp_path, max_shard_size="50KB")
    index = json.loads((tmp_path / INDEX).read_text())
    other = next(f for f in index["weight_map"].values() if f != index["weight_map"]["model.norm.weight"])
    index["weight_map"]["model.norm.weight"] = other
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightError, match=r"'model.norm.weight' is missing, which the index says"):
        load_model(tmp_path)


def test_pickled_weights_are_refused_unread(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightError, match="holds no safetensors"):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(WeightError, match=r"only pickled weights.*save_pretrained"):
        load_model(tmp_path)


def test_paths_that_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_model(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(WeightError, match="is not a GGUF file or a folder"):
        load_model(tmp_path / "text")
    with pytest.raises(WeightError, match="is not a GGUF file"):
        load_model(tmp_path, load_format="gguf")
    with pytest.raises(WeightError, match="is not a folder of safetensors"):
        load_model(tmp_path / "text", load_format="safetensors")


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_progress_reaches_the_end(tmp_path: Path, load_format: LoadFormat) -> None:
    tiny_llama(tmp_path, tie_word_embeddings=True)
    change_tensors(tmp_path, lm_head__weight=torch.ones(96, 48))
    calls: list[tuple[int, int]] = []
    load_model(tmp_path, load_format, progress=lambda done, total: calls.append((done, total)))
    assert len(calls) > 10
    assert calls == sorted(calls)
    assert len({total for _, total in calls}) == 1
    assert calls[-1][0] == calls[-1][1] > 0


def test_dummy_weights_are_seeded_and_of_sensible_scale() -> None:
    def take(name: str, seed: int = 0, shape: tuple[int, ...] = (200, 400)) -> torch.Tensor:
        return DummyWeights(torch.float32, torch.device("cpu"), seed).take(name, shape)

    first = take("a.weight")
    assert torch.equal(first, take("a.weight"))
    assert not torch.equal(first, take("b.weight"))
    assert not torch.equal(first, take("a.weight", seed=1))
    assert first.std().item() == pytest.approx(400**-0.5, rel=0.02)
    assert abs(first.mean().item()) < 1e-3
    assert (take("model.norm.weight", shape=(8,)) == 1).all()
    assert (take("q_proj.bias", shape=(8,)) == 0).all()


def test_dummy_model_runs_from_a_config_alone(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    loaded = load_model(tmp_path, "dummy", dtype="float32")
    assert isinstance(loaded.model, Llama)
    hidden = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    logits = loaded.model.logits(hidden)
    assert 0.5 < logits.std().item() < 2


def test_is_gguf(tmp_path: Path, smollm2_path: Path) -> None:
    assert is_gguf(smollm2_path)
    assert not is_gguf(tmp_path)
    (tmp_path / "blob").write_bytes(b"GGUF")
    assert is_gguf(tmp_path / "blob")
