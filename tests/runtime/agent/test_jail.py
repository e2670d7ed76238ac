"""Every way out of the workspace that we could think of, tried on a real file system by file tools."""

import contextlib
import os
import socket
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.agent.jail import Jail, JailError

from .conftest import SECRET

OUT = [
    "../secret.txt",
    "inner/../../secret.txt",
    "./inner/.././../secret.txt",
    "inner//..//..//secret.txt",
    "..",
    "/etc/passwd",
    "/",
    "to-file",
    "to-folder/secret.txt",
    "relative",
    "inner/chain/secret.txt",
    "to-folder/../secret.txt",
    "proc/etc/passwd",
    "proc",
    "cwd/setup.py",
    "/proc/self/root/etc/passwd",
    "loop",
    "loop/x",
    "inner/../../workspace-twin/f",
    "a.txt/../../secret.txt",
    "a\0b",
]


@pytest.mark.parametrize("path", OUT)
def test_ways_out(path: str, jail: Jail, root: Path) -> None:
    before = sorted(str(file) for file in root.parent.rglob("*"))
    with pytest.raises(JailError):
        jail.read(path, 1000)
    with pytest.raises(JailError):
        jail.write(path, b"broken")
    with pytest.raises(JailError):
        jail.names(path)
    with pytest.raises(JailError):
        list(jail.walk(path))
    assert sorted(str(file) for file in root.parent.rglob("*")) == before
    assert (root.parent / "secret.txt").read_text() == SECRET


def test_a_folder_whose_name_begins_like_the_workspaces(jail: Jail, root: Path) -> None:
    with pytest.raises(JailError, match="leads out"):
        jail.read(f"{root}-twin/f", 100)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.txt", "inside"),
        ("inner/../a.txt", "inside"),
        ("good", "deeper"),
        ("good-absolute/b.txt", "deeper"),
        ("up-and-down", "inside"),
        ("inner/b.txt", "deeper"),
    ],
)
def test_ways_inside(path: str, text: str, jail: Jail, root: Path) -> None:
    assert jail.read(path, 100).data == text.encode()
    assert jail.read(str(root / path), 100).data == text.encode()


def test_a_write_through_a_link_inside_leaves_the_link(jail: Jail, root: Path) -> None:
    assert jail.write("good", b"new") == "inner/b.txt"
    assert (root / "good").is_symlink()
    assert (root / "inner" / "b.txt").read_text() == "new"


def test_walking_follows_no_link(jail: Jail) -> None:
    assert list(jail.walk(".")) == ["a.txt", "inner/b.txt"]
    assert list(jail.walk("inner")) == ["inner/b.txt"]
    assert list(jail.walk("a.txt")) == ["a.txt"]


def test_what_is_no_regular_file(jail: Jail, root: Path) -> None:
    os.mkfifo(root / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(root / "s"))
    for name in ("pipe", "s", "inner", "."):
        with pytest.raises(JailError):
            jail.read(name, 10)
        with pytest.raises(JailError):
            jail.write(name, b"x")
    listener.close()


def test_a_hard_link_keeps_the_bytes_that_lie_outside(jail: Jail, root: Path) -> None:
    outside = root.parent / "secret.txt"
    os.link(outside, root / "hard")
    jail.write("hard", b"mine")
    assert (root / "hard").read_text() == "mine"
    assert outside.read_text() == SECRET


def test_permissions_stay_but_for_setuid(jail: Jail, root: Path) -> None:
    (root / "a.txt").chmod(0o4755)
    jail.write("a.txt", b"x")
    assert (root / "a.txt").stat().st_mode & 0o7777 == 0o755


def test_a_write_is_whole_or_not_at_all(jail: Jail, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(JailError, match="No space left"):
        jail.write("a.txt", b"half")
    assert (root / "a.txt").read_text() == "inside"
    assert not list(root.glob(".*"))


def test_links_that_change_while_a_path_is_walked(jail: Jail, root: Path) -> None:
    """A folder and a file that become links and folders again all the time: what is read is the inside, or nothing."""
    stop = threading.Event()
    (root / "real").mkdir()
    (root / "real" / "secret.txt").write_text("inside")

    def swap() -> None:
        while not stop.is_set():
            for target in ("../outside", "real"):
                os.symlink(target, root / "next")
                os.rename(root / "next", root / "moving")

    os.symlink("real", root / "moving")
    thread = threading.Thread(target=swap)
    thread.start()
    try:
        seen: set[bytes] = set()
        tries, deadline = 0, time.monotonic() + 60
        while tries < 300 or (len(seen) < 2 and time.monotonic() < deadline):
            tries += 1
            try:
                seen.add(jail.read("moving/secret.txt", 100).data)
                jail.write("moving/new.txt", b"x")
            except JailError:
                seen.add(b"refused")
            time.sleep(tries % 7 / 10_000)  # so that the two do not fall into step
    finally:
        stop.set()
        thread.join()
    assert seen <= {b"inside", b"refused"}
    assert len(seen) == 2, "both states were met"
    assert not (root.parent / "outside" / "new.txt").exists()


def test_a_folder_that_becomes_a_link_after_it_was_looked_at(
    jail: Jail, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very moment between reading a link and opening: the worst that a swap can do."""
    look = os.readlink

    def look_and_swap(name: str, *, dir_fd: int) -> str:
        if name != "inner" or (root / "inner").is_symlink():
            return look(name, dir_fd=dir_fd)
        try:
            return look(name, dir_fd=dir_fd)
        finally:
            os.rename(root / "inner", root / "away")
            (root / "inner").symlink_to(root.parent / "outside")

    monkeypatch.setattr(os, "readlink", look_and_swap)
    with pytest.raises(JailError):
        jail.read("inner/secret.txt", 100)


names = st.sampled_from(
    [
        "..",
        ".",
        "",
        "inner",
        "a.txt",
        "to-folder",
        "good-absolute",
        "secret.txt",
        "b.txt",
        "chain",
        "loop",
        "proc",
        "é",
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(names, max_size=7), absolute=st.booleans())
def test_no_path_gives_what_lies_outside(parts: list[str], absolute: bool, jail: Jail, root: Path) -> None:
    path = "/".join(([str(root)] if absolute else []) + parts)
    with contextlib.suppress(JailError):
        assert jail.read(path, 100).data in (b"inside", b"deeper")


"""What Landlock does not look at."""
