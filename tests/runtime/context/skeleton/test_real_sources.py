"""Skeletons of sources that lie on this machine, of damaged ones and of any text."""

import ast
import random
import site
import sys
import sysconfig
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.runtime.context.skeleton.fold import skeleton
from deeproot.runtime.context.skeleton.languages import (
    LANGUAGES,
)

from .samples import SAMPLES, language, parses

STDLIB = Path(sysconfig.get_path("stdlib"))
PACKAGES = [Path(p) for p in [*site.getsitepackages(), *sys.path] if p.endswith("site-packages")]


def some(pattern: str, roots: list[Path], count: int, most: int = 60_000) -> list[Path]:
    """The same sample of real files each time on one machine; hash order of names spreads it over packages."""
    found = {
        p for root in roots for p in root.rglob(pattern) if p.is_file() and 200 < p.stat().st_size < most
    }
    chosen = sorted(found)
    random.Random(7).shuffle(chosen)
    return chosen[:count]


def declarations(source: str) -> list[tuple[str, str]]:
    """Classes and functions with their arguments, not those inside functions: by Python's own parser."""
    found: list[tuple[str, str]] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                returns = ast.unparse(child.returns) if child.returns else ""
                decorators = " ".join(map(ast.unparse, child.decorator_list))
                found.append((child.name, f"{ast.unparse(child.args)} {returns} {decorators}"))
            else:
                if isinstance(child, ast.ClassDef):
                    found.append(
                        (
                            child.name,
                            " ".join(map(ast.unparse, child.bases)) + (ast.get_docstring(child) or ""),
                        )
                    )
                visit(child)

    visit(ast.parse(source))
    return found


@pytest.mark.parametrize(
    "path", some("*.py", [STDLIB], 70) + some("*.py", PACKAGES, 40), ids=lambda p: p.name
)
def test_python_of_the_library_and_of_packages(path: Path) -> None:
    source = path.read_text("utf-8", errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = declarations(source)
    except SyntaxError:
        pytest.skip("no Python 3 source")  # the library's own tests hold broken ones on purpose
    result = skeleton(source, "python")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert declarations(result.text) == want
    if result.source_parses:
        assert parses(result.text, "python")


INSTALLED = (
    [(p, "c") for p in some("*.h", [Path("/usr/include")], 25) + some("*.h", PACKAGES, 25)]
    + [(p, "cpp") for p in some("*.h", PACKAGES, 40) + some("*.cpp", PACKAGES, 10)]
    + [(p, "javascript") for p in some("*.js", [*PACKAGES, Path("/usr/share")], 25)]
    + [(p, "rust") for p in some("*.rs", [Path("/usr/src"), *PACKAGES], 10)]
    + [(p, "go") for p in some("*.go", [Path("/usr/share/go-1.19/src"), Path("/usr/local/go/src")], 25)]
    + [(p, "typescript") for p in some("*.ts", [Path("/usr/share"), *PACKAGES], 15)]
    + [
        (p, "bash")
        for p in some("*", [Path("/etc/init.d")], 10) + some("*.sh", [Path("/usr/share"), *PACKAGES], 15)
    ]
)


@pytest.mark.parametrize(("path", "name"), INSTALLED, ids=lambda x: x.name if isinstance(x, Path) else x)
def test_sources_installed_on_this_machine(path: Path, name: str) -> None:
    source = path.read_text("utf-8", errors="replace")
    result = skeleton(source, name)
    assert parses(result.text, name) or not parses(source, name)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_damaged_sources_are_taken_and_gain_no_error(name: str, data: st.DataObject) -> None:
    lines = SAMPLES[name].split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        del lines[data.draw(st.integers(0, len(lines) - 1))]
    source = "\n".join(lines)
    result = skeleton(source, language(name))
    assert result.source_parses == parses(source, language(name))
    assert parses(result.text, language(name)) or not result.source_parses


@settings(max_examples=100, deadline=None)
@given(st.text(), st.sampled_from(sorted(LANGUAGES)))
def test_any_text_is_taken(text: str, name: str) -> None:
    result = skeleton(text, name)
    assert parses(result.text, name) or not result.source_parses
