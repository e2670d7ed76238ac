"""A server among rude clients, whose engine is killed again and again.

    python -m deeproot.bench.chaos.run --minutes 3 --report chaos.json -- --model MODEL --kv-cache-memory-bytes 64MiB

What stands behind `--` are the server's flags. Exit code 1 if anything went wrong: a request without an answer or an
error, a greedy text other than a clean server's, a page or a request that is left at the end, or memory that grows.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

import httpx

from deeproot.bench.chaos.clients import ANSWERED, CHAT, LEFT, TIMEOUT_S, Clients, Known, Wrong, body_of
from deeproot.bench.chaos.server import Server, running

_FLAGS = ("--slow-reader-timeout", "1", "--upload-timeout", "1", "--shutdown-timeout", "1")
_PROMPTS, _LIMITS = 24, (1, 5, 20, 60)
_GROWTH = 0.1
_NOISE_BYTES = 48 * 2**20
"""Memory counts as flat if its second half's median is not above its first half's by a tenth and this."""


@dataclass(slots=True)
class Report:
    """What a run found."""

    seconds: float
    requests: int = 0
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    """By kind of client: how many were answered, left, broken, wrong, or got an error, by its status and code."""
    engine_kills: int = 0
    template_kills: int = 0
    stops: int = 0
    wrong: list[str] = field(default_factory=list)
    server_mib: list[int] = field(default_factory=list)
    """Resident memory of the server's process, once a second."""
    engine_mib: list[int] = field(default_factory=list)
    """Of the engine's; 0 while there is none."""


class Chaos:
    """One run against one server."""

    def __init__(self, server: Server, known: Known, seconds: float, clients: int, seed: int) -> None:
        self._server = server
        self._known = known
        self._num_clients = clients
        self._rng = random.Random(seed)
        self._end = time.monotonic() + seconds
        self._outcomes: dict[str, Counter[str]] = {}
        self.report = Report(seconds)

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=TIMEOUT_S, limits=limits) as http:
            workers = [self._client(http, self._rng.randrange(2**32)) for _ in range(self._num_clients)]
            await asyncio.gather(*workers, self._killer(http), self._scales())
        self.report.outcomes = {kind: dict(counts) for kind, counts in sorted(self._outcomes.items())}
        self.report.requests = sum(sum(counts.values()) for counts in self._outcomes.values())

    def settle(self) -> None:
        """Wait until nothing is in flight and note what is left."""
        self._server.wait_ready(120)
        deadline = time.monotonic() + 60
        while True:
            state = self._server.metrics()
            left = {name: state[name] for name in _ZERO_AT_REST if state[name]}
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.2)
        self.report.wrong += [f"at rest {name} is {value:g}" for name, value in left.items()]
        for name, series in (("server", self.report.server_mib), ("engine", self.report.engine_mib)):
            self.report.wrong += [f"the {name}'s memory grows: {why}" for why in growth_of(series)]

    async def _client(self, http: httpx.AsyncClient, seed: int) -> None:
        rng = random.Random(seed)
        clients = Clients(self._server.url, self._server.port, self._known, rng, http)
        kinds = clients.kinds()
        weights = [weight for _, weight in kinds.values()]
        while time.monotonic() < self._end:
            name = rng.choices(list(kinds), weights)[0]
            work, _ = kinds[name]
            try:
                outcome = await asyncio.wait_for(work(), TIMEOUT_S + 10)
            except (httpx.TransportError, TimeoutError, OSError) as error:
                # The server's own process is never killed here, so every connection must end in order.
                outcome = "broken"
                self._wrong(f"{name}: {type(error).__name__}: {error}")
            except Wrong as error:
                outcome = "wrong"
                self._wrong(f"{name}: {error}")
            self._outcomes.setdefault(name, Counter())[outcome] += 1
            if outcome not in (ANSWERED, LEFT):
                await asyncio.sleep(rng.uniform(0, 0.3))  # as those do who read Retry-After, if not as long

    def _wrong(self, what: str) -> None:
        """With its time, so that it can be found in the server's log."""
        self.report.wrong.append(f"{datetime.now().astimezone().isoformat(timespec='milliseconds')} {what}")

    async def _killer(self, http: httpx.AsyncClient) -> None:
        """Now and then a sound engine dies, or stands still for a moment, or a template process dies."""
        while time.monotonic() < self._end:
            await asyncio.sleep(min(self._rng.uniform(3, 15), max(0.0, self._end - time.monotonic())))
            kind = self._rng.choice(["engine", "stop", "template"])
            pids = self._server.template_processes() if kind == "template" else self._server.engines()
            sound = (await http.get("/ready")).status_code == 200
            if not pids or not sound or time.monotonic() >= self._end:
                continue
            if kind == "stop":
                self.report.stops += 1
                os.kill(pids[0], signal.SIGSTOP)
                await asyncio.sleep(self._rng.uniform(0.2, 1.5))
                os.kill(pids[0], signal.SIGCONT)
                continue
            self.report.engine_kills += kind == "engine"
            self.report.template_kills += kind == "template"
            os.kill(pids[0], signal.SIGKILL)

    async def _scales(self) -> None:
        while time.monotonic() < self._end:
            server, engine = await asyncio.to_thread(self._server.resident)
            self.report.server_mib.append(server // 2**20)
            self.report.engine_mib.append(engine // 2**20)
            await asyncio.sleep(1.0)


_ZERO_AT_REST = (
    "deeproot_requests_running",
    "deeproot_requests_waiting",
    'deeproot_pages{state="private"}',
    "deeproot_pages_locked",
)


def growth_of(series: Sequence[int]) -> list[str]:
    """Why a curve of MiB is not flat, if it is not. Its first quarter, in which caches fill, does not count."""
    there = [value for value in series[len(series) // 4 :] if value]
    if len(there) < 8:
        return []
    half = len(there) // 2
    before, after = statistics.median(there[:half]), statistics.median(there[half:])
    if after <= before * (1 + _GROWTH) + _NOISE_BYTES / 2**20:
        return []
    return [f"{before:.0f} MiB, later {after:.0f} MiB"]


def summary(report: Report) -> str:
    """For people: no curves, but what they come to."""
    totals: Counter[str] = Counter()
    for counts in report.outcomes.values():
        totals.update(counts)
    lines = [f"{report.requests} requests in {report.seconds:.0f} s"]
    lines += [f"{count:8} {outcome}" for outcome, count in totals.most_common()]
    lines.append(
        f"engines killed {report.engine_kills}, stopped {report.stops}, template processes killed {report.template_kills}"
    )
    for name, series in (("server", report.server_mib), ("engine", report.engine_mib)):
        there = [value for value in series if value]
        if there:
            lines.append(f"{name}'s memory: median {statistics.median(there):.0f} MiB, most {max(there)} MiB")
    lines += [f"WRONG: {what}" for what in report.wrong]
    return "\n".join(lines)


def learn(server: Server, seed: int) -> Known:
    """The texts of a server that is left alone: one request after another."""
    rng = random.Random(seed)
    shared = "".join(rng.choices("abcdefgh ", k=300))
    texts = {}
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as http:
        for i in range(_PROMPTS):
            prompt = shared[: rng.randrange(1, len(shared))] + f" {i} " + "x" * rng.randrange(1, 200)
            asked = (prompt, rng.choice(_LIMITS))
            answer = http.post(CHAT, json=body_of(asked)).raise_for_status().json()
            texts[asked] = answer["choices"][0]["message"]["content"]
    return Known(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="write the report there, as JSON")
    parser.add_argument("--log", type=Path, help="keep there what the server writes")
    parser.add_argument("flags", nargs="+", metavar="-- FLAG", help="of the server")
    args = parser.parse_args(arguments)
    with running([*_FLAGS, *args.flags], log=args.log) as server:
        known = learn(server, args.seed)
        chaos = Chaos(server, known, 60 * args.minutes, args.clients, args.seed)
        asyncio.run(chaos.run())
        chaos.settle()
        code = server.end()
    report = chaos.report
    if code:
        report.wrong.append(f"the server's exit code is {code}")
    if args.report is not None:
        args.report.write_text(json.dumps(asdict(report)) + "\n", encoding="utf-8")
    print(summary(report))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
