"""The engine's process as its parent sees it: begun, waited for, and how it ended."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping

from deeproot.runtime.engine_messages import Start, encode_start


def spawn(module: str, start: Start) -> subprocess.Popen[bytes]:
    """Run `module` in a process of its own and tell it `start`. Raises OSError."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=_environment(os.environ),
    )
    assert process.stdin is not None
    # Kept open: its end tells the engine that this process is gone.
    process.stdin.write(encode_start(start))
    process.stdin.flush()
    return process


def wait_for_death(process: subprocess.Popen[bytes], every_s: float, meanwhile: Callable[[], None]) -> None:
    """Return when the process has ended; `meanwhile` is called every so many seconds until then."""
    death = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(death, select.POLLIN)
        while not poll.poll(int(1000 * every_s)):
            meanwhile()
    finally:
        os.close(death)


def how_it_ended(returncode: int) -> str:
    """In words."""
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def _environment(current: Mapping[str, str]) -> dict[str, str]:
    """OpenMP's threads wait for each other for a moment awake and then asleep, unless the user says otherwise.

    By default they spin for long, and when anything else wants a core, a step can take twenty times as long: one thread
    spins away the time slice that the other needs. Sleeping at once costs a third of the decode rate on idle cores.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "20000", **current}
