"""Every way out of the workspace that we could think of, tried on a real file system, by file tools and by commands."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deeproot.runtime.agent.jail import Jail, JailError
from deeproot.runtime.agent.shell import Limits, Ran, Shell

from .runs import confinement

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


def run(root: Path, command: str, *, use: frozenset[str] | None = None, **options: object) -> Ran:
    shell = Shell(str(root), confinement() if use is None else use, limits=Limits(seconds=20), **options)  # type: ignore[arg-type]
    try:
        return asyncio.run(shell.run(command))
    finally:
        shell.close()


confined = pytest.mark.skipif("files" not in confinement(), reason="Landlock is not to be had here")


@confined
@pytest.mark.parametrize(
    "command",
    [
        "cat {out}/secret.txt",
        "cat ../secret.txt",
        "cd ..; cat secret.txt",
        "cat to-file",
        "cat to-folder/secret.txt",
        "ln -s {out}/secret.txt made; cat made",
        "cat /proc/self/root{out}/secret.txt",
        "cat proc{out}/secret.txt",
        "cd /proc/self/cwd/..; cat secret.txt",
        "exec 3<{out}; cat /proc/self/fd/3/secret.txt",
        "mount --bind {out} inner; cat inner/secret.txt",
        "ln {out}/secret.txt hard; cat hard",
        "mv {out}/secret.txt here; cat here",
        "cp -r {out} copy; cat copy/secret.txt",
        "tar cf - -C {out} . | cat",
        "cat /etc/shadow /root/.ssh/* /proc/1/environ",
    ],
)
def test_a_command_cannot_read_what_lies_outside(command: str, root: Path) -> None:
    ran = run(root, command.format(out=root.parent))
    assert SECRET.encode() not in ran.output
    assert ran.exit_code != 0 or "|" in command
    assert (root.parent / "secret.txt").read_text() == SECRET


CHANGES = [
    "echo x > {out}/secret.txt",
    "echo x > to-file",
    "truncate -s 0 {out}/secret.txt",
    "rm -rf {out}/secret.txt {out}/outside",
    "mv a.txt {out}/outside/",
    "mv {out}/secret.txt .",
    "touch {out}/new",
    "mkdir {out}/new",
    "ln -s x {out}/new",
]
OF_THE_FILE = ["chmod 0 {out}/outside", "touch -d 2001-01-01 {out}/secret.txt", "chown 1 {out}/secret.txt"]
"""What Landlock does not look at."""


@confined
@pytest.mark.parametrize("command", CHANGES)
def test_landlock_alone_keeps_a_command_from_changing_files(command: str, root: Path) -> None:
    before = state_of(root.parent)
    assert run(root, command.format(out=root.parent), use=confinement() - {"processes"}).exit_code != 0
    assert state_of(root.parent) == before


@pytest.mark.skipif("processes" not in confinement(), reason="there are no namespaces here")
@pytest.mark.parametrize("files", [True, False], ids=["landlock", "mounts alone"])
@pytest.mark.parametrize("command", [*CHANGES, *OF_THE_FILE])
def test_a_command_cannot_change_what_lies_outside(command: str, files: bool, root: Path) -> None:
    """In its namespaces, and with files of the host that it may read, so that its own /tmp does not hide them."""
    before = state_of(root.parent)
    reads = [str(root.parent / "outside"), str(root.parent / "secret.txt")]
    run(
        root,
        command.format(out=root.parent),
        use=confinement() - (set() if files else {"files"}),
        reads=reads,
    )
    assert state_of(root.parent) == before


def state_of(folder: Path) -> list[tuple[str, int, int, int, str]]:
    """What there is beside the workspace, whose it is, and what is in it."""
    found = []
    for path in sorted(folder.rglob("*")):
        if folder / "workspace" not in path.parents and path.name != "workspace":
            s = path.lstat()
            text, time_ns = (path.read_text(), s.st_mtime_ns) if path.is_file() else ("", 0)
            found.append((str(path), s.st_mode, s.st_uid, time_ns, text))
    return found


@pytest.mark.skipif("no network" not in confinement(), reason="there is no keeping from the network here")
def test_a_command_has_no_network(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = run(root, f"(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo reached")
        assert b"reached" not in ran.output
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


@pytest.mark.skipif("processes" not in confinement(), reason="there are no namespaces here")
def test_a_command_sees_no_process_and_no_socket_of_the_host(root: Path, tmp_path: Path) -> None:
    assert run(root, f"kill -0 {os.getpid()}").exit_code != 0
    assert run(root, "ls /proc | grep -c '^[0-9]*$'").output.strip() in (b"4", b"5")
    with socket.socket(socket.AF_UNIX) as listener:
        place = Path("/tmp") / f"deeproot-test-{os.getpid()}.sock"
        listener.bind(str(place))
        try:
            assert run(root, f"test -e {place} && echo yes || echo no").output == b"no\n"
        finally:
            place.unlink()


@pytest.mark.skipif("processes" not in confinement(), reason="there are no namespaces here")
def test_a_command_can_talk_to_itself(root: Path) -> None:
    ran = run(root, "mkfifo p; (echo hi > p &) ; cat p; echo x > /tmp/y; cat /tmp/y; echo > /dev/null")
    assert ran == Ran(b"hi\nx\n", 0)


def test_the_environment_is_not_the_hosts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert b"sk-secret" not in run(root, "env; cat /proc/self/environ").output
    assert b"sk-given" in run(root, "env", env=[("TOKEN", "sk-given")]).output


@confined
def test_without_namespaces_files_are_kept_all_the_same(root: Path) -> None:
    shell = Shell(str(root), confinement() - {"processes"}, limits=Limits(seconds=20))
    try:
        for command in (f"cat {root.parent}/secret.txt", f"echo x > {root.parent}/secret.txt", "cat to-file"):
            assert asyncio.run(shell.run(command)).exit_code != 0
        assert asyncio.run(shell.run("echo $((1+1)) > sum; cat sum")).output == b"2\n"
    finally:
        shell.close()
    assert (root.parent / "secret.txt").read_text() == SECRET


def test_what_cannot_be_had_is_not_run(root: Path) -> None:
    """A workspace that is gone, as a stand-in for a confinement that fails."""
    shell = Shell(str(root / "gone"), confinement(), limits=Limits(seconds=20))
    try:
        ran = asyncio.run(shell.run("echo ran"))
    finally:
        shell.close()
    assert ran.exit_code == 125
    assert b"ran\n" not in ran.output
