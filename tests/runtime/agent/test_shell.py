"""Commands end when they must, with all that they started, and their output stays within its limit."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from deeproot.runtime.agent.shell import INTERRUPTED, TIMED_OUT, Limits, Ran, Shell, programs

from .runs import confinement


def run(root: Path, command: str, limits: Limits, use: frozenset[str] | None = None) -> Ran:
    shell = Shell(str(root), confinement() if use is None else use, limits=limits)
    try:
        return asyncio.run(shell.run(command))
    finally:
        shell.close()


def alive(mark: str) -> list[int]:
    """Processes with `mark` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def gone(mark: str) -> bool:
    """Whether they end within a moment."""
    for _ in range(100):
        if not alive(mark):
            return True
        time.sleep(0.02)
    return False


STUBBORN = """trap '' TERM INT HUP
sleep {mark} &
(trap '' TERM; sleep {mark}) &
{daemon}
echo started
sleep {mark}"""


def test_time_limit_with_children_that_ignore_sigterm(tmp_path: Path) -> None:
    mark = f"86400.{os.getpid()}1"
    daemon = f"setsid bash -c \"trap '' TERM; sleep {mark}\" &" if "processes" in confinement() else ""
    ran = run(tmp_path, STUBBORN.format(mark=mark, daemon=daemon), Limits(seconds=1.0))
    assert ran.exit_code == TIMED_OUT
    assert ran.output == b"started\n"
    assert "1 s, the time limit" in ran.why
    assert gone(mark)


def test_time_limit_by_process_group_alone(tmp_path: Path) -> None:
    mark = f"86400.{os.getpid()}2"
    ran = run(tmp_path, STUBBORN.format(mark=mark, daemon=""), Limits(seconds=1.0), frozenset())
    assert (ran.exit_code, ran.output) == (TIMED_OUT, b"started\n")
    assert gone(mark)


@pytest.mark.parametrize("confined", [True, False])
def test_what_a_command_leaves_running_ends_with_it(confined: bool, tmp_path: Path) -> None:
    mark = f"86400.{os.getpid()}3{int(confined)}"
    ran = run(
        tmp_path, f"sleep {mark} & echo bye", Limits(seconds=20), confinement() if confined else frozenset()
    )
    assert ran == Ran(b"bye\n", 0)
    assert gone(mark)


def test_the_agents_own_end_is_the_commands(tmp_path: Path) -> None:
    mark = f"86400.{os.getpid()}4"
    ready = tmp_path / "ready"
    child = os.fork()
    if not child:
        try:
            run(tmp_path, f"touch ready; sleep {mark}", Limits(seconds=60))
        finally:
            os._exit(0)
    for _ in range(500):
        if ready.exists():
            break
        time.sleep(0.02)
    assert alive(mark)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert gone(mark)


def test_a_flood_is_cut_and_killed(tmp_path: Path) -> None:
    ran = run(tmp_path, "echo first; yes", Limits(seconds=60, keep_bytes=1000, kill_bytes=1 << 20))
    assert ran.exit_code == TIMED_OUT
    assert "bytes of output" in ran.why
    assert ran.output.startswith(b"first\ny\n")
    assert b" bytes left out]\n" in ran.output
    assert len(ran.output) < 1100


@pytest.mark.parametrize(("total", "keep"), [(10, 10), (11, 10), (9, 10), (1000, 2), (70_000, 66_000)])
def test_the_start_and_the_end_are_kept(total: int, keep: int, tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 26) for i in range(total))
    (tmp_path / "t").write_text(text)
    ran = run(tmp_path, "cat t", Limits(seconds=20, keep_bytes=keep))
    half, left = keep // 2, max(0, total - keep)
    expected = text if not left else f"{text[:half]}\n[{left} bytes left out]\n{text[-half:]}"
    assert ran == Ran(expected.encode(), 0)


def test_binary_output_and_exit_codes(tmp_path: Path) -> None:
    assert run(tmp_path, r"printf '\x00\xff\x80'; exit 7", Limits()) == Ran(b"\x00\xff\x80", 7)
    assert run(tmp_path, "kill -9 $$", Limits()).exit_code == 137
    assert run(tmp_path, "cat; echo no input", Limits()) == Ran(b"no input\n", 0)
    assert run(tmp_path, "nonesuch", Limits()).exit_code == 127


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.01, 0.05, 0.5])
def test_interrupted_at_any_time(delay: float, tmp_path: Path) -> None:
    mark = f"86400.{os.getpid()}5{int(delay * 1000)}"

    async def interrupt(shell: Shell) -> Ran:
        task = asyncio.create_task(shell.run(f"echo begun; sleep {mark}"))
        await asyncio.sleep(delay)
        task.cancel()
        return await task

    shell = Shell(str(tmp_path), confinement())
    try:
        if delay:
            ran = asyncio.run(interrupt(shell))
            assert ran.exit_code == INTERRUPTED
            assert ran.output in (b"", b"begun\n")
        else:  # before it began
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(_cancelled_before(shell))
    finally:
        shell.close()
    assert gone(mark)


async def _cancelled_before(shell: Shell) -> None:
    task = asyncio.create_task(shell.run("true"))
    task.cancel()
    await task


def test_programs_never_include_a_home_or_what_holds_the_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    for folder in ("bin", ".tool/bin", "work"):
        (home / folder).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    places = f"{home}/bin:{home}/.tool/bin:/usr/bin:{tmp_path}/missing:{home}:/::{home}/work:."
    monkeypatch.setenv("PATH", places)
    monkeypatch.chdir(home)
    found = programs(str(home / "work"))
    assert found[:3] == [str(home / "bin"), str(home / ".tool"), "/usr"]
    for never in (str(home), "/", str(home / "work"), str(tmp_path)):
        assert never not in found
