"""The wheel holds every source file of the packages and works without the repository."""

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = (".py", ".cpp", ".h")
FOLDERS = ("deeproot", "kernels", "engine", "scheduler", "runtime", "bench")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the build leaves nothing in the repository."""
    folder, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(source),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_every_source_file_is_in_the_wheel(wheel: Path) -> None:
    files = [
        path.relative_to(ROOT)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES
    ]
    names = {str(path if path.parts[0] == "deeproot" else Path("deeproot") / path) for path in files}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.endswith(SUFFIXES)}
        assert "deeproot/py.typed" in archive.namelist()
        assert "deeproot/bench/report/page.html.jinja" in archive.namelist()
    assert packed == names


def test_the_wheel_works_in_an_environment_of_its_own(wheel: Path, tmp_path: Path) -> None:
    """Dependencies come from this environment's site-packages, deeproot only from the wheel."""
    folder = tmp_path / "env"
    venv.create(folder, with_pip=False)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", vars=paths))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "import deeproot, deeproot.runtime.cli; from deeproot import LLM;"
        "print(deeproot.__version__, deeproot.runtime.cli.__file__, LLM.__name__)"
    )
    result = subprocess.run(
        [folder / "bin" / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    version, path, name = result.stdout.split()
    assert Path(path).is_relative_to(site), f"deeproot was not taken from the wheel: {path}"
    assert name == "LLM"
    assert version == "0.1.0"
