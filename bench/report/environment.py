"""What a measurement was made on."""

import argparse
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from deeproot import __version__

_CPU_INFO = Path("/proc/cpuinfo")


def environment(packages: Iterable[str] = ("torch", "triton", "numpy")) -> dict[str, Any]:
    """Versions and device. No names of machines or people."""
    return {
        "deeproot": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
        "device": device_name(),
        "processors": os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.release()}",
        "load before": _load(),
        "date": datetime.now(UTC).date().isoformat(),
    }


def device_name() -> str:
    """The GPU if torch finds one, else the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    """The flags as they were given or left, without keys and with files by their last name."""
    hidden = {"module", "api_key", "json", "out"}
    return {
        name.replace("_", "-"): _plain(value)
        for name, value in sorted(vars(args).items())
        if name not in hidden and value is not None
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return value.name
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, str) and Path(value).exists():
        return Path(value).name
    return value if isinstance(value, (int, float, bool, str)) else str(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _load() -> str:
    """How busy the machine was: a figure taken while others computed is worth less."""
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "not known"
