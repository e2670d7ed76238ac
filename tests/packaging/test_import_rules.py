"""Who may import whom: kernels nothing of ours, engine kernels, scheduler engine, runtime scheduler and engine."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"kernels", "engine", "scheduler", "runtime", "bench"}
ALLOWED = {
    "kernels": {"kernels"},
    "engine": {"kernels", "engine"},
    "scheduler": {"engine", "scheduler"},
    "runtime": {"engine", "scheduler", "runtime"},
}


def imported_packages(source: str) -> set[str]:
    """Top-level folders of ours that a source file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the package"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = [name.split(".") for name in names]
    return {part[1] for part in parts if part[0] == "deeproot" and len(part) > 1 and part[1] in FOLDERS}


@pytest.mark.parametrize("package", ALLOWED)
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        forbidden = imported_packages(path.read_text()) - ALLOWED[package]
        assert not forbidden, f"{path.relative_to(ROOT)} imports {sorted(forbidden)}"


def test_the_check_sees_every_form_of_import() -> None:
    source = "import deeproot.runtime.cli\nfrom deeproot.bench import x\ndef f():\n    from deeproot import engine\n"
    assert imported_packages(source) == {"runtime", "bench", "engine"}
