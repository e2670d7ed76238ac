"""The GGUF reader against files written, and read, by the `gguf` package; and against damage of every kind."""

import contextlib
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.engine.gguf import GGUFError, GGUFFile

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
QUANTISABLE = ["BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]
DEQUANTISABLE = [
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "NVFP4", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS"),
]

HEADER_BYTES = 600
"""Of the sample file, at least."""


def write(path: Path, fill: Callable[[gguf.GGUFWriter], None], arch: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, arch)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def fill_sample(writer: gguf.GGUFWriter) -> None:
    writer.add_uint32("a.u32", 2**32 - 1)
    writer.add_int64("a.i64", -(2**63))
    writer.add_uint64("a.u64", 2**64 - 1)
    writer.add_int8("a.i8", -128)
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Ġwörld 世界")
    writer.add_array("a.strings", ["", "a", "Ġb", "世界"])
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_array("a.bools", [True, False, True])
    rng = np.random.default_rng(0)
    writer.add_tensor("f32", rng.normal(size=(3, 5)).astype(np.float32))
    writer.add_tensor("f16", rng.normal(size=(2, 3, 4)).astype(np.float16))
    writer.add_tensor("vector", rng.normal(size=7).astype(np.float32))
    quantised = quants.quantize(rng.normal(size=(4, 64)).astype(np.float32), GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", quantised, raw_dtype=GGMLQuantizationType.Q8_0)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "sample.gguf", fill_sample)


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


def test_a_type_without_dequantisation_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "i.gguf", lambda w: w.add_tensor("t", np.arange(4, dtype=np.int32)))
    with GGUFFile(path) as file, pytest.raises(GGUFError, match=r"'t' has type I32.*Q8_0"):
        file.read("t")


def test_the_sample_has_the_header_that_the_fuzz_tests_change(sample: Path) -> None:
    with GGUFFile(sample) as file:
        start = min(t.offset for t in file.tensors.values())
    assert HEADER_BYTES <= start < HEADER_BYTES + 100


def test_arrays_outlive_the_file(sample: Path) -> None:
    with GGUFFile(sample) as file:
        values = file.read("f32")
    values += 1
    assert np.isfinite(values).all()


def try_all(path: Path) -> None:
    """Open and read everything; GGUFError is the only way to fail."""
    with contextlib.suppress(GGUFError), GGUFFile(path) as file:
        for name in file.tensors:
            file.read(name)


@FUZZ
@given(data=st.binary(max_size=300))
def test_random_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(data)
    with pytest.raises(GGUFError):
        GGUFFile(path)


@FUZZ
@given(data=st.binary(max_size=300), tensors=st.integers(0, 4), keys=st.integers(0, 4))
def test_random_bytes_after_a_sound_start(tmp_path: Path, data: bytes, tensors: int, keys: int) -> None:
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + data)
    try_all(path)


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_changed_header_bytes(tmp_path: Path, sample: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(sample.read_bytes())
    for position, byte in changes:
        content[position % HEADER_BYTES] = byte
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(content)
    try_all(path)


@FUZZ
@given(
    position=st.integers(0, 10**6), value=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
)
def test_changed_header_numbers(tmp_path: Path, sample: Path, position: int, value: int) -> None:
    content = bytearray(sample.read_bytes())
    struct.pack_into("<Q", content, position % HEADER_BYTES, value)
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(content)
    try_all(path)


def test_every_truncation_is_refused(tmp_path: Path, sample: Path) -> None:
    content = sample.read_bytes()
    path = tmp_path / "short.gguf"
    last_tensor = max(t.offset + t.num_bytes for t in GGUFFile(sample).tensors.values())
    for length in range(last_tensor):
        path.write_bytes(content[:length])
        with pytest.raises(GGUFError, match=r"cut off|empty|cannot fit|ends within|a string of|not a GGUF"):
            GGUFFile(path)


def header(
    kvs: bytes = b"", num_kvs: int = 0, tensors: bytes = b"", num_tensors: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_kvs) + kvs + tensors


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def kv(key: bytes, code: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", code) + value


def tensor(name: bytes = b"t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


REFUSED: dict[str, tuple[bytes, str]] = {
    "magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "version 1": (header(version=1), "version 1 is not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "too many keys": (header(num_kvs=2**60), "number of metadata keys"),
    "too many tensors": (header(num_tensors=2**60), "number of tensors"),
    "long key": (
        header(struct.pack("<Q", 2**63) + bytes(40), 1),
        "a metadata key: 9223372036854775808 bytes wanted",
    ),
    "double key": (header(kv(b"k", 0, b"\1") * 2, 2), "'k' occurs twice"),
    "unknown type": (header(kv(b"k", 99, bytes(8)), 1), "'k': unknown type 99"),
    "huge array": (header(kv(b"k", 9, struct.pack("<IQ", 4, 2**62)), 1), "'k'.*bytes wanted"),
    "huge strings": (header(kv(b"k", 9, struct.pack("<IQ", 8, 2**62)), 1), "'k'.*cannot fit"),
    "nested arrays": (header(kv(b"k", 9, struct.pack("<IQ", 9, 1)), 1), "arrays of arrays"),
    "bad boolean": (header(kv(b"k", 7, b"\2") + bytes(4), 1), "neither 0 nor 1"),
    "not UTF-8": (header(kv(b"k", 8, text(b"\xff\xff")), 1), "'k': not UTF-8"),
    "not UTF-8 in an array": (
        header(kv(b"k", 9, struct.pack("<IQ", 8, 2) + text(b"ok") + text(b"\xff")), 1),
        "element 1 is not UTF-8",
    ),
    "alignment 0": (header(kv(b"general.alignment", 4, bytes(4)), 1), "power of two"),
    "alignment 48": (header(kv(b"general.alignment", 4, struct.pack("<I", 48)), 1), "power of two"),
    "no dimensions": (header(tensors=tensor(dims=()) + bytes(64), num_tensors=1), "0 dimensions"),
    "many dimensions": (header(tensors=tensor(dims=(1,) * 5), num_tensors=1), "5 dimensions"),
    "a dimension of 0": (header(tensors=tensor(dims=(4, 0)) + bytes(64), num_tensors=1), "does not suit"),
    "unknown tensor type": (header(tensors=tensor(kind=77) + bytes(64), num_tensors=1), "unknown type 77"),
    "a part of a group": (
        header(tensors=tensor(kind=8, dims=(33,)) + bytes(64), num_tensors=1),
        "does not suit type Q8_0",
    ),
    "a crooked offset": (header(tensors=tensor(offset=4) + bytes(64), num_tensors=1), "multiple of 32"),
    "past the end": (header(tensors=tensor(offset=1024) + bytes(64), num_tensors=1), "past the end"),
    "a huge tensor": (header(tensors=tensor(dims=(2**63, 2**63)) + bytes(64), num_tensors=1), "past the end"),
    "overlapping tensors": (
        header(tensors=tensor(b"a", dims=(16,)) + tensor(b"b", offset=32) + bytes(128), num_tensors=2),
        "'a' and 'b' overlap",
    ),
    "the same bytes twice": (
        header(tensors=tensor(b"a") + tensor(b"b") + bytes(128), num_tensors=2),
        "'a' and 'b' overlap",
    ),
    "double tensor": (header(tensors=tensor() * 2 + bytes(64), num_tensors=2), "'t' occurs twice"),
}


def big_file(path: Path, content: bytes, size: int = 2**36) -> Path:
    """A file of that size which takes no room on the disk."""
    path.write_bytes(content)
    os.truncate(path, size)
    return path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (header(num_kvs=2**17), "metadata keys: 131072, at most"),
        (header(num_tensors=2**20), "tensors: 1048576, at most"),
        (header(struct.pack("<Q", 2**35), 1), "a metadata key: 34359738368 bytes wanted.*268435456 bytes at most"),
        (header(kv(b"k", 9, struct.pack("<IQ", 0, 2**35)), 1), "'k': 34359738368 bytes wanted.*at most"),
        (header(kv(b"k", 9, struct.pack("<IQ", 8, 2**31)), 1), "'k': 2147483648 cannot fit"),
    ],
)  # fmt: skip
def test_absurd_counts_in_a_file_that_is_as_large_take_no_memory(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """64 GiB of holes: what the counts ask for would fit into the file."""
    path = big_file(tmp_path / "big.gguf", content)
    tracemalloc.start()
    try:
        with pytest.raises(GGUFError, match=reason):
            GGUFFile(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(tmp_path: Path, name: str) -> None:
    content, reason = REFUSED[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=reason) as caught:
        GGUFFile(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_versions_and_alignments(tmp_path: Path, version: int, alignment: int) -> None:
    start = header(
        kv(b"general.alignment", 4, struct.pack("<I", alignment)), 1, tensor(offset=2 * alignment), 1, version
    )
    padding = -len(start) % alignment
    path = tmp_path / "ok.gguf"
    path.write_bytes(start + bytes(padding + 2 * alignment) + np.arange(4, dtype="<f4").tobytes())
    with GGUFFile(path) as file:
        assert file.version == version
        assert file.read("t").tolist() == [0, 1, 2, 3]


def test_missing_file_and_empty_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(GGUFError, match="empty"):
        GGUFFile(tmp_path / "empty.gguf")


def test_unknown_tensor(sample: Path) -> None:
    names: Any = GGUFFile(sample)
    with pytest.raises(KeyError):
        names.read("nothing")
