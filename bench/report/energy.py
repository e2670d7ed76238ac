"""Joules that a device used, where it says so: RAPL on Linux, NVML by way of `nvidia-smi`."""

import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

POWERCAP = Path("/sys/class/powercap")
_SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")
_SAMPLE_S = 0.1


class Meter(Protocol):
    """Used as a context around the work; then `joules` says what was used, and None that it is not known."""

    source: str
    joules: float | None

    def __enter__(self) -> "Meter": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass
class NoMeter:
    """For where nothing can be read."""

    source: str = "not measured"
    joules: float | None = None

    def __enter__(self) -> "NoMeter":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to read."""


@dataclass
class RaplMeter:
    """Counters of whole processor packages: everything on them counts, other processes too."""

    zones: tuple[Path, ...]
    source: str = "RAPL, whole packages"
    joules: float | None = None
    _before: dict[Path, int] = field(default_factory=dict)

    def __enter__(self) -> "RaplMeter":
        self._before = {zone: _number(zone / "energy_uj") for zone in self.zones}
        return self

    def __exit__(self, *error: object) -> None:
        used = 0
        for zone, before in self._before.items():
            after = _number(zone / "energy_uj")
            # The counter starts again at 0 behind its range.
            used += (
                after - before if after >= before else after + _number(zone / "max_energy_range_uj") - before
            )
        self.joules = used / 1e6


@dataclass
class SmiMeter:
    """Watts of all GPUs, read over and over; joules are their sum over time."""

    source: str = "nvidia-smi, all GPUs, sampled"
    joules: float | None = None

    def __enter__(self) -> "SmiMeter":
        self._used = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self.joules = self._used

    def _sample(self) -> None:
        last = time.perf_counter()
        while True:
            stopping = self._stop.wait(_SAMPLE_S)
            watts, now = _watts(), time.perf_counter()
            self._used += (watts or 0.0) * (now - last)
            last = now
            if stopping:
                return


def find_meter(powercap: Path = POWERCAP) -> Meter:
    """The GPUs' meter if `nvidia-smi` answers with numbers, else the processor's, else none."""
    if shutil.which(_SMI[0]) and _watts() is not None:
        return SmiMeter()
    zones = tuple(sorted(zone for zone in powercap.glob("intel-rapl:*") if zone.name.count(":") == 1))
    try:
        for zone in zones:
            _number(zone / "energy_uj")
    except (OSError, ValueError):
        return NoMeter("not measured: the processor's counters may not be read")
    return RaplMeter(zones) if zones else NoMeter()


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _watts() -> float | None:
    try:
        done = subprocess.run(_SMI, capture_output=True, text=True, timeout=10, check=True)
        return sum(float(line) for line in done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
