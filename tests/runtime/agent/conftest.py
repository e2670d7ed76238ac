"""Workspaces, plain and beside a secret, a log for a run, and a home."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deeproot.runtime.agent.jail import Jail
from deeproot.runtime.context.event_log import EventLog


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "a.py").write_text("PORT = 5432\n")
    return made


@pytest.fixture
def log() -> Iterator[EventLog]:
    with EventLog.memory() as made:
        yield made


SECRET = "the secret of the host"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace beside which lies a secret."""
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    (tmp_path / "workspace-twin").mkdir()
    (tmp_path / "workspace-twin" / "f").write_text(SECRET)
    made = tmp_path / "workspace"
    (made / "inner").mkdir(parents=True)
    (made / "a.txt").write_text("inside")
    (made / "inner" / "b.txt").write_text("deeper")
    (made / "to-file").symlink_to(tmp_path / "secret.txt")
    (made / "to-folder").symlink_to(tmp_path / "outside")
    (made / "relative").symlink_to("../secret.txt")
    (made / "inner" / "chain").symlink_to("../to-folder")
    (made / "proc").symlink_to("/proc/self/root")
    (made / "cwd").symlink_to("/proc/self/cwd")
    (made / "loop").symlink_to("loop")
    (made / "good").symlink_to("inner/b.txt")
    (made / "good-absolute").symlink_to(made / "inner")
    (made / "up-and-down").symlink_to("inner/../a.txt")
    return made


@pytest.fixture
def jail(root: Path) -> Iterator[Jail]:
    made = Jail(root)
    yield made
    made.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home, where `deeproot agent` keeps its logs, and a terminal that is wide enough for every line."""
    made = tmp_path / "home"
    made.mkdir()
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return made
