"""Every way out of the workspace that we could think of, tried by commands."""

import asyncio
import os
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from deeproot.runtime.agent.shell import Limits, Ran, Shell

from .conftest import SECRET
from .runs import confinement


def run(
    root: Path,
    command: str,
    *,
    use: frozenset[str] | None = None,
    reads: Sequence[str] = (),
    env: Sequence[tuple[str, str]] = (),
) -> Ran:
    kinds = confinement() if use is None else use
    shell = Shell(str(root), kinds, limits=Limits(seconds=20), reads=reads, env=env)
    try:
        return asyncio.run(shell.run(command))
    finally:
        shell.close()


def needs(kind: str, what: str) -> pytest.MarkDecorator:
    """The agent confines commands by what the kernel and its administrator allow, and says at start what is missing; where
    that is missing (in many containers), there is nothing that could hold, and so nothing to test."""
    return pytest.mark.skipif(kind not in confinement(), reason=f"this system does not allow {what}")


confined = needs("files", "Landlock")
in_namespaces = needs("processes", "namespaces")


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


@confined
@pytest.mark.parametrize("command", CHANGES)
def test_landlock_alone_keeps_a_command_from_changing_files(command: str, root: Path) -> None:
    before = state_of(root.parent)
    assert run(root, command.format(out=root.parent), use=confinement() - {"processes"}).exit_code != 0
    assert state_of(root.parent) == before


@in_namespaces
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


@needs("no network", "keeping commands from the network")
def test_a_command_has_no_network(root: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ran = run(root, f"(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo reached")
        assert b"reached" not in ran.output
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


@in_namespaces
def test_a_command_sees_no_process_and_no_socket_of_the_host(root: Path, tmp_path: Path) -> None:
    assert run(root, f"kill -0 {os.getpid()}").exit_code != 0
    # The shells around the command, and what they run: some may not have begun, or have ended, when `ls` looks.
    assert int(run(root, "ls /proc | grep -c '^[0-9]*$'").output) <= 5
    with socket.socket(socket.AF_UNIX) as listener:
        place = Path("/tmp") / f"deeproot-test-{os.getpid()}.sock"
        listener.bind(str(place))
        try:
            assert run(root, f"test -e {place} && echo yes || echo no").output == b"no\n"
        finally:
            place.unlink()


@in_namespaces
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
