"""Servers that a benchmark starts itself: the time to each one's first answer, and what it holds and uses at rest."""

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Server
from deeproot.bench.report.result import Column, How, Metric, Table

_START_S, _END_S = 900.0, 30.0
_POLL_S = 0.05
_SETTLE_S, _REST_S = 1.0, 3.0
"""Threads may wait awake for a moment after an answer; after that a server at rest is watched for so long."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a server is started. `environment`: beside that of the benchmark. `rounds`: the most it is asked for, if it is slow."""

    name: str
    url: str
    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    environment: dict[str, str] = {}
    rounds: Annotated[int, msgspec.Meta(ge=1)] | None = None


class _Recipes(msgspec.Struct, forbid_unknown_fields=True):
    servers: Annotated[tuple[Recipe, ...], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True)
class AtRest:
    """Of a server after its first answer. `memory_mb`: of all its processes, what they share counted once (PSS)."""

    startup_s: float
    memory_mb: float
    cores: float
    """That it keeps busy while it is asked nothing."""


def read_recipes(path: Path) -> tuple[Recipe, ...]:
    """Of a TOML file, a table `servers` each. Raises ValueError, naming the file and the field, or OSError."""
    try:
        with path.open("rb") as file:
            found = msgspec.convert(tomllib.load(file), _Recipes).servers
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ValueError(
            f"{path}: {error}; each [[servers]] has a name, a url and a command, and may have environment and rounds"
        ) from None
    names = [recipe.name for recipe in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}: two servers are called {twice!r}; give each a name of its own")
    return found


@contextlib.asynccontextmanager
async def started(recipe: Recipe, server: Server) -> AsyncIterator[AtRest]:
    """A server that has answered; it is ended afterwards, with all that it has started.

    Raises ValueError, with the end of what it has written, if it ends before or takes too long.
    """
    with tempfile.TemporaryFile() as log:
        begun = time.perf_counter()
        try:
            process = subprocess.Popen(
                recipe.command,
                env={**os.environ, **recipe.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise ValueError(f"{recipe.name}: cannot be started: {error}") from None
        try:
            while not await _answers(server):
                if process.poll() is not None or time.perf_counter() - begun > _START_S:
                    log.seek(0)
                    raise ValueError(
                        f"{recipe.name}: did not start: {log.read().decode(errors='replace')[-2000:]}"
                    )
                await asyncio.sleep(_POLL_S)
            yield await _watched(process.pid, time.perf_counter() - begun)
        finally:
            _end(process)


async def _answers(server: Server) -> bool:
    """One token of an answer."""
    try:
        await server.find_model()
    except ValueError:
        return False
    ask = Ask("first", 1, 0.0, 1, messages=({"role": "user", "content": "Hello"},), ignore_eos=True)
    return (await server.ask(ask, 0.0)).error is None


async def _watched(pid: int, startup_s: float) -> AtRest:
    await asyncio.sleep(_SETTLE_S)
    try:
        before, begun = _used(pid), time.perf_counter()
        await asyncio.sleep(_REST_S)
        cores = (_used(pid) - before) / (time.perf_counter() - begun)
        memory = sum(process.memory_full_info().pss for process in _tree(pid))
    except psutil.Error as error:
        raise ValueError(f"a process of a server that had just answered ended: {error}") from None
    return AtRest(startup_s, memory / 1e6, cores)


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _used(pid: int) -> float:
    """Seconds of processor time of all its processes."""
    times = [process.cpu_times() for process in _tree(pid)]
    return float(sum(used.user + used.system for used in times))


def _end(process: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # it, or what it has left behind
    process.wait()


def rest_metrics(found: dict[str, AtRest]) -> tuple[Metric, ...]:
    return tuple(
        Metric(name=f"{what}, {name}", unit=unit, how=How.MEASURED, samples=(value,))
        for name, rest in found.items()
        for what, unit, value in (
            ("start-up", "s", rest.startup_s),
            ("memory at rest", "MB", rest.memory_mb),
            ("busy at rest", "cores", rest.cores),
        )
    )


def rest_tables(found: dict[str, AtRest]) -> tuple[Table, ...]:
    """One, or none if no server was started."""
    if not found:
        return ()
    titles: Sequence[str] = ("start-up, s", "memory at rest, MB", "busy at rest, cores")
    columns = (Column("server"), *(Column(title, How.MEASURED) for title in titles))
    rows = tuple(
        (name, f"{rest.startup_s:.1f}", f"{rest.memory_mb:,.0f}", f"{rest.cores:.3f}")
        for name, rest in found.items()
    )
    note = (
        "Start-up: from the command to the first answer of one token. Memory: PSS of all processes after it."
    )
    return (Table("Started once each", columns, rows, note),)
