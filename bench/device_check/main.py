"""Checks and measures this project's GPU path on one machine: see docs/gpu.md.

scripts/device_check [--dry-run] [--out FILE] [--seconds N] [--only REGEX] [--seed N]
"""

import argparse
import importlib
import json
import os
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from deeproot.bench.device_check.assemblers import compare_assemblers, find_assemblers
from deeproot.bench.device_check.child import run_child
from deeproot.bench.device_check.report import is_good, table
from deeproot.bench.device_check.structs import ensure_structs

_LEAST_SECONDS = 8.0
"""A part that has less left is not started."""


def main(argv: list[str] | None = None) -> int:
    """Run the check, or one part of it in a child; the exit status."""
    options = _parse(argv)
    has_msgspec = ensure_structs()
    parts = importlib.import_module("deeproot.bench.device_check.parts")
    if options.part is not None:
        return _run_part(options, parts)
    if not options.dry_run and not torch.cuda.is_available():
        print(
            "device_check: torch finds no CUDA GPU; --dry-run runs it in Triton's interpreter",
            file=sys.stderr,
        )
        return 2
    started = time.monotonic()
    chosen = [part for part in parts.all_parts() if re.search(options.only, part.name)]
    report: dict[str, Any] = {
        "device": "CPU" if options.dry_run else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "msgspec": has_msgspec,
        "dry_run": options.dry_run,
        "seed": options.seed,
        "assembler_versions": {} if options.dry_run else find_assemblers(),
        "parts": {},
    }
    for name, command, environment, seconds in _runs(options, chosen, report["assembler_versions"]):
        left = options.seconds - (time.monotonic() - started)
        if left < _LEAST_SECONDS:
            report["parts"][name] = {"status": "left out", "error": "no time left", "seconds": 0.0}
            continue
        print(f"{name} ...", flush=True)
        report["parts"][name] = run_child(command, min(seconds, left), environment)
    of_assemblers = {
        name.removeprefix("assembler "): part.get("result", {})
        for name, part in report["parts"].items()
        if name.startswith("assembler ")
    }
    report["assemblers"] = compare_assemblers(of_assemblers) if len(of_assemblers) > 1 else {}
    report["seconds"] = time.monotonic() - started
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n".join(table(report)))
    print(f"written to {options.out}")
    return 0 if is_good(report) else 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="device_check", description=__doc__)
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny sizes in Triton's interpreter on the CPU"
    )
    parser.add_argument("--out", type=Path, default=Path("device_check.json"), help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=460.0, help="for all parts (default: %(default)s)")
    parser.add_argument("--only", default="", help="a regular expression: the parts whose name holds it")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="(default: a fresh one)")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _runs(
    options: argparse.Namespace, parts: list[Any], assemblers: dict[str, str]
) -> Iterator[tuple[str, list[str], dict[str, str], float]]:
    """Name, command, environment and time limit of each child."""
    for part in parts:
        if options.dry_run and not part.in_dry_run:
            continue
        command = [sys.executable, "-P", "-m", "deeproot.bench.device_check", "--part", part.name]
        command += ["--seed", str(options.seed)]
        if options.dry_run:
            # Limits of the parts are for GPUs; how fast the interpreter is depends on the machine's other work.
            yield part.name, [*command, "--dry-run"], {"TRITON_INTERPRET": "1"}, options.seconds
        elif not part.assemblers:
            yield part.name, command, {}, part.seconds
        elif len(assemblers) > 1:
            for version, path in assemblers.items():
                with tempfile.TemporaryDirectory() as cache:
                    environment = {"TRITON_PTXAS_PATH": path, "TRITON_CACHE_DIR": cache}
                    yield f"{part.name} {version}", command, environment, part.seconds


def _run_part(options: argparse.Namespace, parts: Any) -> int:
    """In a child: write what was measured after each step."""
    settings = importlib.import_module("deeproot.bench.device_check.settings")
    (part,) = (part for part in parts.all_parts() if part.name == options.part)
    results: dict[str, Any] = {}
    for name, figures in part.run(settings.Setting(options.dry_run, options.seed)):
        results[name] = figures
        whole = options.out.with_suffix(".part")
        whole.write_text(json.dumps(results))
        os.replace(whole, options.out)
    return 0
