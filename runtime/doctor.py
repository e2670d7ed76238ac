"""`deeproot doctor`: what the machine has, what will be used and why, and what would make it faster."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from deeproot import __version__
from deeproot.engine.attention_choice import AttentionNeeds, choose_attention
from deeproot.engine.cpu_threads import choose_threads, cores_here
from deeproot.engine.loading import read_config, resolve_dtype
from deeproot.runtime.chat.append_only import find_breaks, summary
from deeproot.runtime.chat.assets import ModelAssets
from deeproot.runtime.chat.template_processes import TemplateProcesses
from deeproot.runtime.engine_setup import choose_device
from deeproot.runtime.memory import available_memory, total_memory
from deeproot.runtime.model_search import found_models
from deeproot.runtime.options import TEMPLATE_TIMEOUT_S, format_bytes

_CPUINFO = Path("/proc/cpuinfo")
_FLAGS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 bf16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX bf16",
    "asimd": "NEON",
    "sve": "SVE",
    "bf16": "Arm bf16",
}
"""Flags of the CPU that matter here, as Linux and as people write them."""
_COMPILERS = ("c++", "g++", "clang++")

Report = dict[str, Any]
"""JSON-like; see `examine`."""


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if a model was named that cannot be used, else 0."""
    report = examine(args.model)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(report_lines(report)))
    usable = args.model is None or all("problem" not in model for model in report["models"])
    return 0 if usable else 1


def examine(model: str | None = None) -> Report:
    """Look at the machine, its software and the models: only facts, gathered without loading weights."""
    device = choose_device("auto")
    paths = [Path(model)] if model is not None else [found.path for found in found_models()]
    report: Report = {
        "deeproot": __version__,
        "cpu": _cpu(),
        "memory": {"total_bytes": total_memory(), "available_bytes": available_memory()},
        "gpus": _gpus(),
        "software": _software(),
        "compiler": _compiler(),
        "models": [_model(path) for path in paths],
        "choice": _choice(device),
    }
    report["faster_with"] = _advice(report)
    return report


def report_lines(report: Report) -> list[str]:
    """The report for people."""
    cpu, memory, choice = report["cpu"], report["memory"], report["choice"]
    features = ", ".join(cpu["features"]) or "none of those that matter here"
    lines = [
        f"deeproot   {report['deeproot']}",
        f"CPU        {cpu['name']}: {cpu['usable_cores']} of {cpu['cores']} cores usable; {features}",
        f"memory     {_size(memory['available_bytes'])} available of {_size(memory['total_bytes'])}",
        *(f"GPU        {gpu['name']}, {_size(gpu['memory_bytes'])}" for gpu in report["gpus"]),
        *(["GPU        none that torch can use"] if not report["gpus"] else []),
        "software   "
        + ", ".join(f"{name} {version or 'missing'}" for name, version in report["software"].items()),
        f"compiler   {report['compiler'] or 'none'}",
        *(f"model      {_model_line(model)}" for model in report["models"]),
        *(["model      none found: scripts/serve fetches a small one"] if not report["models"] else []),
        f"device     {choice['device']}: {choice['device_why']}",
        f"attention  {choice['attention']}: {choice['attention_why']}",
        f"dtype      {choice['dtype']}: {choice['dtype_why']}",
        f"threads    {choice['threads']}: {choice['threads_why']}",
    ]
    return lines + [f"faster     {advice}" for advice in report["faster_with"]]


def _cpu() -> Report:
    flags: set[str] = set()
    name = platform.processor() or platform.machine()
    if _CPUINFO.is_file():
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                flags.update(value.split())
            elif key.strip() == "model name":
                name = value.strip()
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "name": name,
        "cores": os.cpu_count(),
        "usable_cores": usable,
        "torch_threads": torch.get_num_threads(),
        "features": [text for flag, text in _FLAGS.items() if flag in flags],
    }


def _gpus() -> list[Report]:
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        {"name": gpu.name, "memory_bytes": gpu.total_memory, "compute_capability": f"{gpu.major}.{gpu.minor}"}
        for gpu in found
    ]


def _software() -> dict[str, str | None]:
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in ("torch", "triton", "flash-attn", "tokenizers")},
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compiler() -> str | None:
    for name in _COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            continue
        return answer.stdout.splitlines()[0]
    return None


def _model(path: Path) -> Report:
    try:
        config = read_config(path)
    except (OSError, ValueError) as error:
        return {"path": str(path), "problem": str(error)}
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return {
        "path": str(path),
        "architecture": config.architecture,
        "layers": config.num_layers,
        "max_model_len": config.max_position_embeddings,
        "file_bytes": sum(file.stat().st_size for file in files),
        "template": _template(path),
    }


def _template(path: Path) -> str:
    """Whether the chat template keeps earlier text, in one line."""
    try:
        programs = TemplateProcesses(TEMPLATE_TIMEOUT_S)
        return summary(find_breaks(ModelAssets.load(path).chat_template(programs=programs)))
    except (OSError, ValueError) as error:
        return f"cannot be checked: {error}"


def _model_line(model: Report) -> str:
    if "problem" in model:
        return f"{model['path']}: cannot be used: {model['problem']}"
    return (
        f"{model['path']}: {model['architecture']}, {model['layers']} layers, up to {model['max_model_len']} tokens, "
        f"{_size(model['file_bytes'])}; chat template: {model['template']}"
    )


def _choice(device: torch.device) -> Report:
    """What the defaults of device, dtype, attention and threads come to on this machine."""
    dtype = resolve_dtype("auto", device)
    if device.type == "cuda":
        dtype_why = "the GPU computes in it"
    elif dtype == torch.bfloat16:
        dtype_why = "the CPU computes in it (AVX-512 bf16 or AMX) and it halves the memory that is read"
    else:
        dtype_why = "the CPU has neither AVX-512 bf16 nor AMX, so bfloat16 would be emulated and slower"
    attention = choose_attention("auto", AttentionNeeds(device, dtype))
    threads = choose_threads(None, os.environ, cores_here())
    return {
        "device": device.type,
        "device_why": "torch finds a CUDA GPU" if device.type == "cuda" else "torch finds no CUDA GPU",
        "attention": attention.name,
        "attention_why": attention.why,
        "dtype": str(dtype).removeprefix("torch."),
        "dtype_why": dtype_why,
        "threads": threads.count,
        "threads_why": threads.why,
    }


def _advice(report: Report) -> list[str]:
    cpu, advice = report["cpu"], []
    if not report["gpus"]:
        advice.append("a CUDA GPU and a torch build for it")
        if report["choice"]["dtype"] == "float32":
            advice.append("a CPU with AMX or AVX-512 bf16, which computes in bfloat16")
        if cpu["usable_cores"] < cpu["cores"]:
            advice.append(f"all {cpu['cores']} cores: this process may use {cpu['usable_cores']}")
        if os.environ.get("OMP_NUM_THREADS") and cpu["torch_threads"] < cpu["usable_cores"]:
            advice.append(
                f"more threads: OMP_NUM_THREADS allows {cpu['torch_threads']} for {cpu['usable_cores']} cores"
            )
    return advice


def _size(count: int | None) -> str:
    return "unknown" if count is None else format_bytes(count)
