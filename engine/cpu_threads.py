"""How many threads compute on a CPU, and why: what is asked for, what the machine allows, and what a short measurement says."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_PROBE_S = 0.2
"""For all candidates together."""
_WEIGHT = (4096, 2048)
"""In float32 32 MiB: more than a core's own caches hold."""
_PROMPT_ROWS = 256
_CLOSE = 0.97
"""Of the best: what is as good is taken if it has fewer threads, which leaves more to the server's process."""


@dataclass(frozen=True, slots=True)
class Cores:
    """What a process may compute on."""

    usable: int
    """Logical ones that it may run on."""
    physical: int
    """Physical ones that these are of."""
    quota: float | None = None
    """Cores' worth of time that its control group gets; None: no limit."""


@dataclass(frozen=True, slots=True)
class Threads:
    count: int
    why: str


Measure = Callable[[Sequence[int]], dict[int, float]]
"""Speeds, in any unit, by number of threads."""


def cores_here(cgroup: Path = _CGROUP, cpus: Path = _CPUS) -> Cores:
    """Of this process, by its affinity, the machine's topology and its control group."""
    if hasattr(os, "sched_getaffinity"):
        usable = sorted(os.sched_getaffinity(0))
    else:
        usable = list(range(os.cpu_count() or 1))
    return Cores(len(usable), len({_siblings(cpus, cpu) for cpu in usable}), _quota(cgroup))


def choose_threads(
    wanted: int | None, environment: Mapping[str, str], cores: Cores, measure: Measure | None = None
) -> Threads:
    """wanted: by the user; None leaves it to OMP_NUM_THREADS and, if that is not set, to what is fastest.

    measure: `measure_speeds` if not given; called only if there is something to choose from.
    """
    if wanted is not None:
        return Threads(wanted, "asked for")
    if environment.get("OMP_NUM_THREADS"):
        return Threads(torch.get_num_threads(), f"OMP_NUM_THREADS is {environment['OMP_NUM_THREADS']}")
    counts = candidates(cores)
    if len(counts) == 1:
        return Threads(counts[0], f"{_said(cores)}, so there is nothing to choose")
    speeds = (measure or measure_speeds)(counts)
    best = max(speeds.values())
    chosen = min(count for count in counts if speeds[count] >= _CLOSE * best)
    compared = ", ".join(f"{count}: {speeds[count] / speeds[chosen]:.2f}" for count in counts)
    return Threads(chosen, f"{_said(cores)}; measured speeds, as shares of the chosen one's, {compared}")


def candidates(cores: Cores) -> list[int]:
    """The numbers that may be the best, ascending: a thread for each physical core or for each logical one, and no more than
    the quota gives time to, rounded either way."""
    most = {cores.usable, cores.physical}
    if cores.quota is None:
        return sorted(most)
    limits = (max(1, math.floor(cores.quota)), max(1, math.ceil(cores.quota)))
    return sorted({min(count, limit) for count in most for limit in limits})


def measure_speeds(counts: Sequence[int], seconds: float = _PROBE_S) -> dict[int, float]:
    """Of two products that are like a model's, one bound by memory as a decoding step and one by arithmetic as a prompt:
    the geometric mean of how many are done in a second. torch's number of threads is afterwards as before."""
    before = torch.get_num_threads()
    weight = torch.ones(_WEIGHT)
    # A wide one of the same weight's values, so that nothing more has to be touched first.
    inputs = (torch.ones(1, _WEIGHT[1]), torch.ones(_PROMPT_ROWS, _WEIGHT[1]))
    weights = (weight, weight[: _WEIGHT[0] // 4])
    speeds = {}
    try:
        for count in counts:
            torch.set_num_threads(count)
            share = seconds / len(counts) / 2
            rates = [_rate(rows, stored, share) for rows, stored in zip(inputs, weights, strict=True)]
            speeds[count] = math.sqrt(rates[0] * rates[1])
    finally:
        torch.set_num_threads(before)
    return speeds


def _rate(rows: torch.Tensor, weight: torch.Tensor, seconds: float) -> float:
    """Products in a second; the first is not counted."""
    torch.nn.functional.linear(rows, weight)
    done, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds or not done:
        torch.nn.functional.linear(rows, weight)
        done += 1
    return done / passed if passed else math.inf


def _said(cores: Cores) -> str:
    text = f"{cores.physical} physical and {cores.usable} logical cores usable"
    return text if cores.quota is None else f"{text}, time for {cores.quota:g} by the control group"


def _siblings(cpus: Path, cpu: int) -> str:
    """The same for logical cores of one physical core; without a topology each is one of its own."""
    try:
        return (cpus / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(cgroup: Path) -> float | None:
    """Control groups of version 2, then 1."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal() and int(quota) and int(period)):
        return None  # "max", or -1: no limit
    return int(quota) / int(period)
