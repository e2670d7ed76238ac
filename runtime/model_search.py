"""Where models lie on this machine, and a name for each."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FoundModel:
    name: str
    """What `--model` may be given instead of the path."""
    path: Path


def home_folder() -> Path:
    """`$DEEPROOT_HOME`, or the default below the user's cache."""
    home = os.environ.get("DEEPROOT_HOME")
    return Path(home).expanduser() if home else Path.home() / ".cache" / "deeproot"


def found_models() -> list[FoundModel]:
    """Models in deeproot's own folder, and those that Hugging Face's tools have downloaded."""
    folder = home_folder() / "models"
    own = [*folder.glob("*.gguf"), *(path.parent for path in folder.glob("*/config.json"))]
    return [*(FoundModel(name_of(path), path) for path in sorted(own)), *_downloaded()]


def name_of(path: Path) -> str:
    """`SmolLM2-135M-Instruct` for `…/SmolLM2-135M-Instruct.Q4_1.gguf`; a folder's own name."""
    path = path.absolute()
    if path.suffix != ".gguf":
        return path.name
    stem, _, quantisation = path.stem.rpartition(".")
    return stem if stem and quantisation[:1].upper() in ("Q", "F", "B", "I") else path.stem


def _downloaded() -> list[FoundModel]:
    """Newest snapshot of each repository in Hugging Face's cache that holds a model."""
    hub = os.environ.get("HF_HUB_CACHE")
    home = os.environ.get("HF_HOME")
    default = Path(home) if home else Path.home() / ".cache" / "huggingface"
    folder = Path(hub) if hub else default / "hub"
    found = []
    for repository in sorted(folder.glob("models--*")):
        snapshots = [path.parent for path in repository.glob("snapshots/*/config.json")]
        if snapshots:
            name = repository.name.removeprefix("models--").replace("--", "/")
            found.append(FoundModel(name, max(snapshots, key=lambda path: path.stat().st_mtime)))
    return found
