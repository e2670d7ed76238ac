"""The GGUF reader against files written, and read, by the `gguf` package."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from tests.engine.gguf_samples import write

from deeproot.engine.gguf import GGUFError, GGUFFile
from deeproot.engine.gguf_types import READABLE_TYPES

QUANTISABLE = ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
DEQUANTISABLE = [
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
]


def assert_equals_package(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
        assert file.metadata == theirs
        assert {k: type(v) for k, v in file.metadata.items()} == {k: type(v) for k, v in theirs.items()}
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            mine = file.tensors[tensor.name]
            assert mine.shape == tuple(reversed(tensor.shape.tolist()))
            assert (mine.type, mine.offset, mine.num_bytes) == (
                tensor.tensor_type,
                tensor.data_offset,
                tensor.n_bytes,
            )
            values = file.read(tensor.name)
            assert values.dtype == np.float32
            assert np.array_equal(values, quants.dequantize(tensor.data, tensor.tensor_type))


def test_equals_the_package_on_a_sample(sample: Path) -> None:
    assert_equals_package(sample)


def test_equals_the_package_on_the_real_model(smollm2_path: Path) -> None:
    reader = gguf.GGUFReader(smollm2_path)
    with GGUFFile(smollm2_path) as file:
        for key, field in reader.fields.items():
            if not key.startswith("GGUF."):
                assert file.metadata[key] == field.contents(), key
        for tensor in reader.tensors[::40]:
            assert np.array_equal(file.read(tensor.name), quants.dequantize(tensor.data, tensor.tensor_type))


@pytest.mark.parametrize("name", QUANTISABLE)
def test_dequantises_near_what_was_quantised(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    values = np.random.default_rng(1).normal(size=(6, 512)).astype(np.float32)
    data = quants.quantize(values, kind)
    path = write(tmp_path / "q.gguf", lambda w: w.add_tensor("t", data, raw_dtype=kind))
    with GGUFFile(path) as file:
        read = file.read("t")
    assert read.shape == values.shape
    limit = {"TQ1_0": 0.85, "TQ2_0": 0.85, "MXFP4": 0.2, "Q8_0": 0.01, "BF16": 0.01}.get(name, 0.1)
    assert np.linalg.norm(read - values) < limit * np.linalg.norm(values)


@pytest.mark.parametrize("name", DEQUANTISABLE)
def test_other_types_are_read_as_the_package_does(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    group, group_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(2).integers(0, 256, (5, 2 * group_bytes), dtype=np.uint8)
    path = write(tmp_path / "q.gguf", lambda w: w.add_tensor("t", data, raw_dtype=kind))
    with GGUFFile(path) as file, np.errstate(all="ignore"):
        assert file.tensors["t"].shape == (5, 2 * group)
        assert np.array_equal(file.read("t"), quants.dequantize(data, kind), equal_nan=True)


@pytest.mark.parametrize("kind", [kind for kind in GGMLQuantizationType if kind.name not in READABLE_TYPES])
def test_the_package_cannot_read_the_others_either(kind: GGMLQuantizationType) -> None:
    with pytest.raises(NotImplementedError):
        quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)


@pytest.mark.parametrize("name", sorted(READABLE_TYPES))
def test_the_package_can_read_what_is_said_to_be_readable(name: str) -> None:
    kind = GGMLQuantizationType[name]
    size, size_bytes = gguf.GGML_QUANT_SIZES[kind]
    assert quants.dequantize(np.zeros((1, size_bytes), np.uint8), kind).shape == (1, size)


def test_a_type_without_dequantisation_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "i.gguf", lambda w: w.add_tensor("t", np.arange(4, dtype=np.int32)))
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"'t' has type I32.*Q8_0"):
        file.read("t")


def test_arrays_outlive_the_file(sample: Path) -> None:
    with GGUFFile(sample) as file:
        values = file.read("f32")
    values += 1
    assert np.isfinite(values).all()


def test_unknown_tensor(sample: Path) -> None:
    names: Any = GGUFFile(sample)
    with pytest.raises(KeyError):
        names.read("nothing")
