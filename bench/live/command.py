"""`deeproot bench replay --url …`: a workload against servers, ours or others', in turns."""

import argparse
import asyncio
import secrets
from collections.abc import Sequence

from deeproot.bench.cachesim.conversations import Renderer
from deeproot.bench.live import figures
from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Server
from deeproot.bench.live.counters import read_counters
from deeproot.bench.live.drive import Arrivals, Load, Round, drive
from deeproot.bench.live.figures import Limits, Served
from deeproot.bench.live.sources import infinite_share, read_asks
from deeproot.bench.report.energy import Meter, find_meter
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.progress import Advance, progress
from deeproot.bench.report.result import Result, Table

_QUICK_ASKS = 12


def replayed(args: argparse.Namespace, renderer: Renderer, workload: str) -> Result:
    """Send the workload to every server of `--url` and `--compare`. Raises ValueError or OSError for what cannot be done."""
    targets = targets_of(args)
    asks = read_asks(args)
    if args.quick:
        asks = asks[:_QUICK_ASKS]
    rounds = min(args.rounds, 2) if args.quick else args.rounds
    limits = Limits(args.ttft_limit_ms / 1e3, args.tpot_limit_ms / 1e3)
    before, meter = environment(()), find_meter()
    with progress("replay", rounds * len(asks) * len(targets)) as advance, meter:
        servers = [Server(name, url, args.api_key, args.served_model) for name, url in targets]
        served = asyncio.run(_all(servers, asks, _load(args), rounds, advance))
    if not any(one.good for one in served):
        raise ValueError(f"every request failed; the first: {served[0].failed[0].error}")
    exact = args.tokenizer is not None or not asks[0].messages
    infinite = infinite_share(asks, renderer)
    tables: tuple[Table | None, ...] = (
        figures.latency_table(served),
        figures.pair_table(served),
        figures.rate_table(served, limits),
        figures.cache_table(served, infinite, _how_infinite(exact=exact)),
    )
    return Result(
        command="bench replay",
        title=f"{workload}: {len(asks)} requests, {rounds} rounds, to {' and '.join(one.name for one in served)}",
        environment=before,
        settings=settings_of(args),
        metrics=figures.metrics(served, limits),
        tables=tuple(table for table in tables if table is not None),
        charts=figures.charts(served),
        notes=tuple(_notes(served, _load(args), meter)),
    )


def targets_of(args: argparse.Namespace) -> list[tuple[str, str]]:
    """Name and URL of each server, in order. Raises ValueError, naming the flag."""
    made = [] if args.url is None else [("server", args.url)]
    for given in args.compare or ():
        url, _, name = given.rpartition("=")
        if not url or "/" in name:
            url, name = given, given.split("://")[-1].split("/")[0]
        made.append((name, url))
    for name, url in made:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"--compare {url}={name}: give a URL such as http://127.0.0.1:8000/v1")
    names = [name for name, _ in made]
    if len(set(names)) < len(names):
        raise ValueError(
            f"--compare: two servers are called {max(names, key=names.count)!r}; give each a name of its own"
        )
    return made


def _load(args: argparse.Namespace) -> Load:
    return Load(
        Arrivals(args.arrivals),
        args.concurrency,
        args.gaps == "recorded",
        args.rate,
        args.speed,
        args.seed,
    )


async def _all(
    servers: Sequence[Server], asks: Sequence[Ask], load: Load, rounds: int, advance: Advance
) -> list[Served]:
    """A B A B: every round goes to each server in turn, behind a salt of its own, so that no round finds another's."""
    try:
        for server in servers:
            await server.find_model()
        before = [await read_counters(server) for server in servers]
        made: list[list[Round]] = [[] for _ in servers]
        for _ in range(rounds):
            salt = secrets.token_hex(4)
            salted = [ask.salted(salt) for ask in asks]
            for found, server in zip(made, servers, strict=True):
                found.append(await drive(server, salted, load, advance))
        after = [await read_counters(server) for server in servers]
    finally:
        for server in servers:
            await server.http.aclose()
    return [
        Served(server.name, tuple(found), None if old is None or new is None else new.since(old))
        for server, found, old, new in zip(servers, made, before, after, strict=True)
    ]


def _how_infinite(*, exact: bool) -> str:
    counting = (
        "in the asks' own tokens"
        if exact
        else "at four characters a token (--tokenizer and --chat-template count exactly)"
    )
    return (
        f"An infinite cache: what our prefix tree holds of all prompts before, {counting}. Answers are not counted, since"
        " recorded ones are sent back and not the server's own."
    )


def _notes(served: Sequence[Served], load: Load, meter: Meter) -> list[str]:
    sent = {
        Arrivals.CLOSED: f"Closed load: {load.concurrency} session(s) at a time, each ask after the answer to the last"
        + (", and after the recorded gap" if load.keep_gaps else ", without gaps"),
        Arrivals.POISSON: f"Open load: {load.rate:g} asks a second at random times, the same for all",
        Arrivals.RECORDED: f"Open load: at the recorded times, {load.speed:g} times as fast",
    }[load.arrivals]
    notes = [
        f"{sent}. Servers are asked in turns, round by round; each round begins with words of its own, so that it finds"
        " nothing cached of the rounds before. Times are the client's."
    ]
    notes += [
        f"{one.name}: {len(one.failed)} requests failed, the first with: {one.failed[0].error}"
        for one in served
        if one.failed
    ]
    joules = (
        f"{meter.joules:,.0f} J over all rounds and servers ({meter.source})"
        if meter.joules is not None
        else meter.source
    )
    return [*notes, f"Energy: {joules}."]
