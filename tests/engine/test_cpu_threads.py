"""How many threads: what is asked for comes first, then what the machine allows, then what is measured."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deeproot.engine.cpu_threads import (
    Cores,
    candidates,
    choose_threads,
    cores_here,
    measure_speeds,
)


def never(counts: Sequence[int]) -> dict[int, float]:
    raise AssertionError(f"measured {counts}")


def test_what_is_asked_for_comes_first() -> None:
    cores = Cores(16, 8)
    assert choose_threads(3, {"OMP_NUM_THREADS": "5"}, cores, never).count == 3
    chosen = choose_threads(None, {"OMP_NUM_THREADS": "5"}, cores, never)
    assert chosen.count == torch.get_num_threads()
    assert "OMP_NUM_THREADS is 5" in chosen.why


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (Cores(2, 2), [2]),
        (Cores(16, 8), [8, 16]),
        (Cores(16, 8, 4.0), [4]),
        (Cores(16, 8, 2.5), [2, 3]),
        (Cores(4, 2, 3.0), [2, 3]),
        (Cores(2, 2, 0.5), [1]),
        (Cores(2, 2, 64.0), [2]),
    ],
)
def test_candidates(cores: Cores, expected: list[int]) -> None:
    assert candidates(cores) == expected


@given(st.integers(1, 256), st.integers(1, 256), st.none() | st.floats(0.01, 300, allow_nan=False), st.data())
def test_the_chosen_one_is_among_the_best_and_within_the_limits(
    usable: int, physical: int, quota: float | None, data: st.DataObject
) -> None:
    cores = Cores(usable, min(physical, usable), quota)
    counts = candidates(cores)
    assert counts == sorted(set(counts))
    assert 1 <= counts[0] <= counts[-1] <= usable
    assert quota is None or counts[-1] <= max(1, math.ceil(quota))
    speeds = {count: data.draw(st.floats(0.1, 100)) for count in counts}
    chosen = choose_threads(None, {}, cores, lambda _: speeds).count
    if len(counts) > 1:
        assert speeds[chosen] >= 0.97 * max(speeds.values())
        assert all(speeds[count] < 0.97 * max(speeds.values()) for count in counts if count < chosen)
    else:
        assert chosen == counts[0]


def test_the_real_measurement_leaves_the_number_as_it_was() -> None:
    before = torch.get_num_threads()
    speeds = measure_speeds([1, 2], 0.02)
    assert set(speeds) == {1, 2}
    assert all(0 < speed < math.inf for speed in speeds.values())
    assert torch.get_num_threads() == before
    chosen = choose_threads(None, {}, Cores(2, 1), lambda counts: measure_speeds(counts, 0.02))
    assert chosen.count in (1, 2)
    assert "measured speeds" in chosen.why


def test_the_cores_of_a_machine(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    assert cores_here(tmp_path, tmp_path) == Cores(len(usable), len(usable))
    for cpu in usable:  # all are one core's
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-999\n")
    assert cores_here(tmp_path, tmp_path) == Cores(len(usable), 1)
    here = cores_here()
    assert 1 <= here.physical <= here.usable == len(usable)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "nonsense\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_the_time_that_a_control_group_gets(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert cores_here(tmp_path, tmp_path).quota == quota
