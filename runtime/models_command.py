"""`deeproot models`: what a server has loaded, what lies on this machine, what is supported."""

import argparse
import json
from pathlib import Path
from typing import Any

import httpx

from deeproot.engine.loading import read_config
from deeproot.engine.models import MODEL_CLASSES
from deeproot.runtime.model_search import FoundModel, found_models
from deeproot.runtime.options import format_bytes


def run(args: argparse.Namespace) -> int:
    """Print the list; 0."""
    report = {
        "served": served_models(args.url),
        "found": [describe(model) for model in found_models()],
        "supported": sorted(MODEL_CLASSES),
    }
    print(json.dumps(report, indent=2) if args.json else "\n".join(lines_of(report, args.url)))
    return 0


def served_models(url: str) -> list[dict[str, Any]] | None:
    """What the server at `url` says that it serves; None if nobody answers there."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/v1/models", timeout=2)
        models = answer.raise_for_status().json()["data"]
        return [{"name": model["id"], "max_model_len": model.get("max_model_len")} for model in models]
    except (httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError):
        return None


def describe(model: FoundModel) -> dict[str, Any]:
    """Facts from the model's configuration, or why it cannot be served."""
    facts: dict[str, Any] = {"name": model.name, "path": str(model.path)}
    try:
        config = read_config(model.path)
    except (OSError, ValueError) as error:
        return {**facts, "problem": str(error)}
    return {
        **facts,
        "architecture": config.architecture,
        "max_model_len": config.max_position_embeddings,
        "file_bytes": _size(model.path),
    }


def _size(path: Path) -> int:
    files = [path] if path.is_file() else list(path.glob("*.safetensors"))
    return sum(file.stat().st_size for file in files)


def lines_of(report: dict[str, Any], url: str) -> list[str]:
    """The report for people."""
    served = report["served"]
    if served is None:
        lines = [f"served     nothing: no server answers at {url}"]
    else:
        lines = [f"served     {model['name']}, window {model['max_model_len']} ({url})" for model in served]
    for model in report["found"]:
        if "problem" in model:
            lines.append(f"found      {model['name']}: cannot be served: {model['problem']}")
        else:
            facts = f"{model['architecture']}, window {model['max_model_len']}, {format_bytes(model['file_bytes'])}"
            lines.append(f"found      {model['name']}: {facts}, {model['path']}")
    if not report["found"]:
        lines.append("found      none: scripts/serve fetches a small one")
    return [*lines, *(f"supported  {name}" for name in report["supported"])]
