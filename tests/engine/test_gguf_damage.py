"""The GGUF reader against damage of every kind: GGUFError with a reason, and no memory taken."""

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.engine.gguf import GGUFError, GGUFFile

FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

HEADER_BYTES = 600
"""Of the sample file, at least."""


def test_the_sample_has_the_header_that_the_fuzz_tests_change(sample: Path) -> None:
    with GGUFFile(sample) as file:
        start = min(t.offset for t in file.tensors.values())
    assert HEADER_BYTES <= start < HEADER_BYTES + 100


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
