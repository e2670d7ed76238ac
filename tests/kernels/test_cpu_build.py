"""The compiled library is made once, for this CPU and compiler, and whoever cannot make it is told why."""

import logging
from pathlib import Path

import pytest

from deeproot.kernels.cpu import build
from deeproot.kernels.cpu.__main__ import main
from deeproot.kernels.cpu.build import Abilities, BuildError, built_library

PLAIN = Abilities()
"""The smallest library: what any CPU can run."""


def test_it_is_compiled_once_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = built_library(PLAIN, folder=tmp_path)
    assert [record.message.split()[0] for record in caplog.records] == ["compiling", "compiled"]
    assert built_library(PLAIN, folder=tmp_path) == path
    assert len(caplog.records) == 2
    assert list(tmp_path.iterdir()) == [path]


def test_without_a_compiler_it_is_said_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"no C\+\+ compiler was found \(nothing-here\): install g\+\+"):
        built_library(PLAIN, ["nothing-here"], tmp_path)


def fake_compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, "echo 'x.cpp:1: error: unknown flag' >&2; exit 1")
    with pytest.raises(BuildError, match=r"the compiler failed .*error: unknown flag"):
        built_library(PLAIN, [compiler], tmp_path / "cpu")
    assert not list((tmp_path / "cpu").iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text("a file")
    with pytest.raises(BuildError, match=r"could not be written: .*cpu"):
        built_library(PLAIN, folder=tmp_path / "cpu")


def test_other_abilities_and_compilers_are_other_libraries(tmp_path: Path) -> None:
    compiler = fake_compiler(tmp_path, 'for last; do :; done; touch "$last"')
    one = built_library(PLAIN, [compiler], tmp_path / "cpu")
    other = built_library(Abilities(avx2=True), [compiler], tmp_path / "cpu")
    fake_compiler(tmp_path, '# newer\nfor last; do :; done; touch "$last"')
    newer = built_library(PLAIN, [compiler], tmp_path / "cpu")
    assert len({one, other, newer}) == 3


def test_it_can_be_compiled_ahead(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main() == 0
    assert Path(capsys.readouterr().out.strip()).is_file()
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert main() == 1
    assert "not compiled: no C++ compiler was found" in capsys.readouterr().err
