"""What benchmarks have in common that ask several servers in turns, round by round."""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from deeproot.bench.live.client import Server
from deeproot.bench.live.command import targets_of
from deeproot.bench.live.started import (
    AtRest,
    Recipe,
    read_recipes,
    rest_metrics,
    rest_tables,
    started,
)
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Metric, Result, Table
from deeproot.runtime.bench_flag_groups import add_result, add_targets
from deeproot.runtime.flags import whole

DONE, FAILED = 0, 2

One = TypeVar("One")
"""What one round of one server gives."""
Round = Callable[[Server, int], Awaitable[One]]
"""Of a server and a seed. Raises ValueError if a request fails."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a benchmark makes of its rounds."""

    title: str
    metrics: tuple[Metric, ...]
    tables: tuple[Table, ...]


@dataclass(slots=True)
class _Found(Generic[One]):
    """By server. One that fails is asked no more; what it gave before stays."""

    rounds: dict[str, list[One]] = field(default_factory=dict)
    at_rest: dict[str, AtRest] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def parser_of(description: str | None) -> tuple[argparse.ArgumentParser, Any]:
    """A parser with flags for servers, rounds and the result, and the group for those of the load."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    servers = parser.add_argument_group("servers")
    add_targets(servers)
    servers.add_argument(
        "--servers",
        type=Path,
        metavar="FILE",
        help="TOML: servers that are started here, timed in turns and ended; instead of --url and --compare",
    )
    group = parser.add_argument_group("load")
    group.add_argument("--rounds", type=whole(1), default=3, help="(default: %(default)s)")
    group.add_argument(
        "--seed", type=int, help="of the words (default: from the clock, so that no cache has them)"
    )
    add_result(parser)
    return parser, group


def run(
    name: str,
    args: argparse.Namespace,
    warm_up: Round[object],
    one_round: Round[One],
    shown: Callable[[dict[str, list[One]]], Shown],
) -> int:
    """Measure and show; the exit code. warm_up: once for each server, before any round.

    shown: of the rounds by server; of a server that failed in its first there are none.
    """
    try:
        check_output(args)
        recipes = _recipes_of(args)
        before = environment(())
        found = asyncio.run(_measure(name, recipes, args, warm_up, one_round))
    except (OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return FAILED
    except asyncio.CancelledError:
        print(f"{name}: ended by a signal", file=sys.stderr)
        return FAILED
    for reason in found.failed.values():
        print(f"{name}: {reason}", file=sys.stderr)
    whole_rounds = {server: rounds for server, rounds in found.rounds.items() if rounds}
    if not whole_rounds:
        return FAILED
    measured = shown(whole_rounds)
    show(
        args,
        Result(
            command=name,
            title=measured.title,
            environment=before,
            settings=settings_of(args),
            metrics=(*measured.metrics, *rest_metrics(found.at_rest)),
            tables=(*measured.tables, *rest_tables(found.at_rest)),
            notes=tuple(f"failed: {reason}" for reason in found.failed.values()),
        ),
    )
    return DONE


def _recipes_of(args: argparse.Namespace) -> Sequence[Recipe | tuple[str, str]]:
    """What is started, or name and URL of what runs. Raises ValueError, naming the flag, or OSError."""
    targets = targets_of(args)
    if args.servers is not None:
        if targets:
            raise ValueError("--servers: starts all servers itself; leave out --url and --compare")
        return read_recipes(args.servers)
    if not targets:
        raise ValueError(
            "name a server: --url http://127.0.0.1:8000/v1, or several with --compare or --servers"
        )
    return targets


async def _measure(
    name: str,
    recipes: Sequence[Recipe | tuple[str, str]],
    args: argparse.Namespace,
    warm_up: Round[object],
    one_round: Round[One],
) -> _Found[One]:
    task = asyncio.current_task()
    assert task is not None
    # So that servers which were started here are ended.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    found: _Found[One] = _Found()
    seed = time.time_ns() if args.seed is None else args.seed
    async with contextlib.AsyncExitStack() as stack:
        most: dict[Server, int] = {}
        for recipe in recipes:
            target, url = (recipe.name, recipe.url) if isinstance(recipe, Recipe) else recipe
            server = Server(target, url, args.api_key, args.served_model)
            stack.push_async_callback(server.http.aclose)
            found.rounds[target] = []
            most[server] = args.rounds
            try:
                if isinstance(recipe, Recipe):
                    found.at_rest[target] = await stack.enter_async_context(started(recipe, server))
                    most[server] = min(args.rounds, recipe.rounds or args.rounds)
                await server.find_model()
                await warm_up(server, seed - 1)
            except ValueError as error:
                found.failed[target] = str(error)
        await _in_turns(name, found, most, one_round, seed)
    return found


async def _in_turns(
    name: str, found: _Found[One], most: dict[Server, int], one_round: Round[One], seed: int
) -> None:
    """most: rounds of each server."""
    with progress(name, sum(most.values())) as advance:
        for i in range(max(most.values())):
            for server in [server for server, rounds in most.items() if i < rounds]:
                if server.name in found.failed:
                    continue
                try:
                    found.rounds[server.name].append(await one_round(server, seed + i))
                except ValueError as error:
                    found.failed[server.name] = f"in round {i + 1}: {error}"
                advance(server.name)
