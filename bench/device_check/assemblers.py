"""The assemblers (ptxas) at hand. Some versions are reported to miscompile Hopper kernels, so results are compared."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any


def find_assemblers() -> dict[str, str]:
    """Path of one assembler of each version, by version."""
    candidates = [*_bundled(), *map(Path, filter(None, [shutil.which("ptxas")]))]
    candidates += sorted(Path("/usr/local").glob("cuda*/bin/ptxas"))
    found: dict[str, str] = {}
    for path in candidates:
        if path.is_file() and (version := _version(path)) is not None:
            found.setdefault(version, str(path))
    return found


def _bundled() -> list[Path]:
    """Triton's own, and those of NVIDIA's Python packages."""
    paths = []
    for package, places in (
        ("triton", ("backends/nvidia/bin/ptxas",)),
        ("nvidia", ("cuda_nvcc/bin/ptxas", "cu13/bin/ptxas", "cu12/bin/ptxas")),
    ):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            paths += [Path(folder) / place for place in places]
    return paths


def _version(path: Path) -> str | None:
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"V(\d+\.\d+\.\d+)", said)
    return match.group(1) if match else None


def compare_assemblers(reports: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By case: whether all assemblers gave the same bytes, and each one's error and time.

    reports: results by case, by version.
    """
    names = sorted({name for results in reports.values() for name in results})
    compared = {}
    for name in names:
        by_version = {version: results[name] for version, results in reports.items() if name in results}
        compared[name] = {
            "same_bytes": len({figures["digest"] for figures in by_version.values()}) == 1,
            "right": all(figures["right"] for figures in by_version.values()),
            "seconds": {version: figures["seconds"] for version, figures in by_version.items()},
        }
    return compared
