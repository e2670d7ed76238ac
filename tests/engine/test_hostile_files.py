"""Model files made to do harm: refused with a sentence, before memory is taken and without running anything."""

import json
import os
import pickle
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.engine.hf import tiny_llama

from deeproot.engine.config import ConfigError
from deeproot.engine.loading import load_model, read_config
from deeproot.engine.text_files import read_text
from deeproot.engine.weight_files import SafetensorsStore
from deeproot.engine.weights import WeightError

INDEX = "model.safetensors.index.json"
FUZZ = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def with_header(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def as_json(**tensors: Any) -> bytes:
    return json.dumps(tensors).encode()


@contextmanager
def little_memory(most: int = 8 * 2**20) -> Iterator[None]:
    """Fails if Python takes more than `most` bytes meanwhile, or the whole process 256 MiB more than ever before."""
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 256 * 2**10  # in KiB


HOSTILE: dict[str, bytes] = {
    "a header longer than the file": with_header(b"{}", length=2**40),
    "a header of the greatest length": with_header(b"{}", length=2**64 - 1),
    "overlapping tensors": with_header(as_json(a=entry(0, 16, [4]), b=entry(8, 24, [4])), bytes(24)),
    "one tensor over another": with_header(as_json(a=entry(0, 16, [4]), b=entry(0, 16, [4])), bytes(16)),
    "a gap": with_header(as_json(a=entry(0, 16, [4]), b=entry(32, 48, [4])), bytes(48)),
    "data past the end": with_header(as_json(a=entry(0, 2**40, [2**38])), bytes(16)),
    "an end before its start": with_header(as_json(a=entry(16, 0, [4])), bytes(16)),
    "a shape larger than its data": with_header(as_json(a=entry(0, 16, [2**40])), bytes(16)),
    "a shape that overflows": with_header(as_json(a=entry(0, 16, [2**63, 2**63, 4])), bytes(16)),
    "a negative shape": with_header(as_json(a=entry(0, 16, [-4])), bytes(16)),
    "data that nobody owns": with_header(as_json(a=entry(0, 16, [4])), bytes(64)),
    "no JSON": with_header(b"\x80\x04K\x01."),
    "deep JSON": with_header(b"[" * 100_000),
    "a list": with_header(b"[]"),
    "an unknown dtype": with_header(as_json(a=entry(0, 16, [4], "PICKLE")), bytes(16)),
    "an object dtype": with_header(as_json(a=entry(0, 16, [4], "O")), bytes(16)),
    "nothing": b"",
    "seven bytes": b"\0" * 7,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_safetensors_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(HOSTILE[name])
    with little_memory(), pytest.raises(WeightError) as caught:
        SafetensorsStore(tmp_path)
    assert "\n" not in str(caught.value)
    assert "model.safetensors" in str(caught.value)


def test_a_huge_header_in_a_file_that_is_as_large_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_header(b"{}", length=2**35))
    os.truncate(path, 2**36)  # holes, which take no room on the disk
    with little_memory(), pytest.raises(WeightError, match=r"34359738368 bytes.*at most 67108864"):
        SafetensorsStore(tmp_path)


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """Opening one would wait for a writer for ever."""
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(WeightError, match="not a regular file"):
        SafetensorsStore(tmp_path)


def some_headers() -> st.SearchStrategy[bytes]:
    numbers = st.integers(-2, 40) | st.sampled_from([2**31, 2**62, 2**63, 2**64, 10**30])
    entries = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I64", "F8_E4M3", "X", None]),
            "shape": st.lists(numbers, max_size=3),
            "data_offsets": st.lists(numbers, max_size=3),
        }
    )
    junk = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.none(), max_size=2)
    names = st.sampled_from(["a", "b", "__metadata__", ""]) | st.text(max_size=4)
    return st.dictionaries(names, entries | junk, max_size=3).map(lambda value: json.dumps(value).encode())


def read_all(folder: Path) -> None:
    """Either the file is refused, or every tensor that it says it has is there and as large as its shape."""
    try:
        store = SafetensorsStore(folder, fp8=True)
    except WeightError:
        return
    for name, shape in store.shapes.items():
        assert tuple(store.read(name).shape) == shape


@FUZZ
@given(
    header=some_headers() | st.binary(max_size=60),
    data=st.integers(0, 64),
    length=st.none() | st.integers(0, 80),
)
def test_any_header_is_refused_or_sound(tmp_path: Path, header: bytes, data: int, length: int | None) -> None:
    (tmp_path / "model.safetensors").write_bytes(with_header(header, bytes(data), length))
    read_all(tmp_path)


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_change_of_a_sound_header_is_refused_or_sound(
    tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    source = tmp_path / "sound"
    if not source.exists():
        tiny_llama(source)
    content = bytearray((source / "model.safetensors").read_bytes())
    for position, value in changes:
        content[position] = value
    (tmp_path / "model.safetensors").write_bytes(content)
    read_all(tmp_path)


class Bomb:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (str(self._path), "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.safetensors", "model.gguf"])
def test_a_pickle_is_never_loaded(tmp_path: Path, name: str) -> None:
    """Under its own name or another's."""
    tiny_llama(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    torch.save({**tensors, "x": Bomb(tmp_path / "gone off")}, tmp_path / name)
    with pytest.raises(WeightError):
        load_model(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "gone off")))
    with pytest.raises(WeightError):
        load_model(tmp_path)
    assert not (tmp_path / "gone off").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../model.safetensors",
        "..\\model.safetensors",
        "/dev/zero.safetensors",
        "a/../b.safetensors",
        "~/x.safetensors",
        "x.safetensors\0.bin",
        "x.safetensors\n",
        "\u2025/x.safetensors",
        "file:x.safetensors",
        "http://x/y.safetensors",
    ],
)
def test_shards_have_plain_names(tmp_path: Path, name: str) -> None:
    tiny_llama(tmp_path, max_shard_size="50KB")
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(WeightError, match=r"must lie in a \.safetensors file of the same folder"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 2**31 - 1),
        ("num_hidden_layers", 10**30),
        ("max_position_embeddings", 2**31 - 1),
        ("vocab_size", 2**31 - 1),
        ("hidden_size", 2**31 - 2),
        ("intermediate_size", 2**31 - 1),
        ("head_dim", 2**30),
    ],
)
def test_absurd_sizes_in_a_configuration_take_no_memory(tmp_path: Path, key: str, value: int) -> None:
    tiny_llama(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with little_memory(), pytest.raises((ConfigError, WeightError)):
        load_model(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "\0", "", "[]"])
def test_a_configuration_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError):
        read_config(tmp_path)


def test_a_text_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("é" * 4)
    assert read_text(path, 8) == "é" * 4
    with pytest.raises(ValueError, match="larger than the 7 bytes"):
        read_text(path, 7)
    os.truncate(path, 2**36)
    with little_memory(), pytest.raises(ValueError, match="larger than the 1000 bytes"):
        read_text(path, 1000)
    with pytest.raises(ValueError, match="not a regular file"):
        read_text(tmp_path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_text(Path("/dev/zero"))
