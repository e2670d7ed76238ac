"""Sizes, and what can be read of the machine's memory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.memory import available_memory, total_memory
from deeproot.runtime.options import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000000", 1000000),
        ("4GiB", 4 * 2**30),
        ("4gib", 4 * 2**30),
        ("4Gi", 4 * 2**30),
        ("4G", 4 * 10**9),
        ("512M", 512 * 10**6),
        ("1.5 KiB", 1536),
        ("2TB", 2 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 GiBs", "1e9", "4XB", "4,5G", "0x10"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="4GiB"):
        parse_bytes(text)


@given(st.integers(0, 2**60))
def test_sizes_are_written_as_they_are_read(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.05)


def machine(tmp_path: Path, **cgroup: str) -> tuple[Path, Path]:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2000 kB\nMemFree:         100 kB\nMemAvailable:   1000 kB\n")
    folder = tmp_path / "cgroup"
    folder.mkdir()
    for name, content in cgroup.items():
        (folder / name.replace("_", ".")).write_text(content)
    return meminfo, folder


def test_memory_without_a_container(tmp_path: Path) -> None:
    meminfo, cgroup = machine(tmp_path)
    assert available_memory(meminfo, cgroup) == 1000 * 1024
    assert total_memory(meminfo) == 2000 * 1024


def test_memory_in_a_container_without_a_limit(tmp_path: Path) -> None:
    meminfo, cgroup = machine(
        tmp_path, memory_max="max\n", memory_current="5\n", memory_stat="inactive_file 1\n"
    )
    assert available_memory(meminfo, cgroup) == 1000 * 1024


def test_memory_in_a_container_with_a_limit(tmp_path: Path) -> None:
    meminfo, cgroup = machine(
        tmp_path,
        memory_max="600000\n",
        memory_current="500000\n",
        memory_stat="anon 7\ninactive_file 40000\n",
    )
    assert available_memory(meminfo, cgroup) == 140000


def test_memory_where_nothing_is_known(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path / "none") is None
