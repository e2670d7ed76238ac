"""What benchmarks have in common that ask several servers in turns, round by round."""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from deeproot.bench.live.client import Server
from deeproot.bench.live.command import targets_of
from deeproot.bench.report.environment import environment
from deeproot.bench.report.output import check_output, show
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Result
from deeproot.runtime.bench_flag_groups import add_result, add_targets
from deeproot.runtime.flags import whole

DONE, FAILED = 0, 2

One = TypeVar("One")
"""What one round of one server gives."""
Round = Callable[[Server, int], Awaitable[One]]
"""Of a server and a seed. Raises ValueError if a request fails."""


def parser_of(description: str | None) -> tuple[argparse.ArgumentParser, Any]:
    """A parser with flags for servers, rounds and the result, and the group for those of the load."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_targets(parser.add_argument_group("servers"))
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
    result_of: Callable[[dict[str, list[One]], dict[str, Any]], Result],
) -> int:
    """Measure and show; the exit code. warm_up: once for each server, before any round.

    result_of: of the rounds by server, and the environment before them.
    """
    try:
        check_output(args)
        targets = targets_of(args)
        if not targets:
            raise ValueError("name a server: --url http://127.0.0.1:8000/v1, or several with --compare")
        before = environment(())
        found = asyncio.run(_measure(name, targets, args, warm_up, one_round))
    except (OSError, ValueError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return FAILED
    show(args, result_of(found, before))
    return DONE


async def _measure(
    name: str,
    targets: Sequence[tuple[str, str]],
    args: argparse.Namespace,
    warm_up: Round[object],
    one_round: Round[One],
) -> dict[str, list[One]]:
    servers = [Server(target, url, args.api_key, args.served_model) for target, url in targets]
    found: dict[str, list[One]] = {server.name: [] for server in servers}
    seed = time.time_ns() if args.seed is None else args.seed
    try:
        for server in servers:
            await server.find_model()
            await warm_up(server, seed - 1)
        with progress(name, args.rounds * len(servers)) as advance:
            for i in range(args.rounds):
                for server in servers:
                    found[server.name].append(await one_round(server, seed + i))
                    advance(server.name)
    finally:
        for server in servers:
            await server.http.aclose()
    return found
