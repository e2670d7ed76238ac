"""Orders of the queue under loads, by simulation.

    python -m deeproot.bench.simulator [--requests 100000] [--load agents] [--policies fcfs lpm hrrn]

Prints a Markdown table. Invariants are checked after every step unless `--check-every` says otherwise. The bound on overtaking
is required of every request: exit code 1 if one was overtaken by more.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from deeproot.bench.report.text import text_table
from deeproot.bench.simulator.load import Fleet, Flood, airline, recorded
from deeproot.bench.simulator.simulate import Beginnings, Simulation
from deeproot.bench.simulator.summary import HEADS, Overtaken, rows_of
from deeproot.scheduler.config import POLICIES, Policy, SchedulerConfig

LOADS = ("agents", "flood", "airline", "mooncake")
_MOONCAKE_WINDOW = 131_072


def make_load(name: str, seed: int) -> list[Beginnings]:
    """agents: sessions alone. flood: fewer sessions and as many cold requests. airline: 25 recorded dialogues beside
    cold requests. mooncake: the recorded trace, slowed to what one such device can do.
    """
    if name == "agents":
        return [Fleet().sources(seed)]
    if name == "flood":
        return [Fleet(arrival_s=4.0).sources(seed), Flood().sources(seed + 1)]
    if name == "airline":
        return [airline(25, arrival_s=0.5, seed=seed), Flood().sources(seed + 1)]
    return [recorded(2000, speed=0.3)]


def make_simulation(load: str, policy: Policy, check_every: int) -> Simulation:
    window = _MOONCAKE_WINDOW if load == "mooncake" else 16_384
    pages = 3 * window // 64 if load == "mooncake" else 2048
    config = SchedulerConfig(64, 2048, window, policy=policy)
    return Simulation(config, pages, check_every=check_every)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--load", choices=LOADS, default="flood")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--check-every", type=int, default=1, help="steps between checks of all invariants")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    rows: list[list[str]] = []
    with Progress(console=Console(stderr=True)) as bar:
        for policy in args.policies:
            task = bar.add_task(f"{args.load}, {policy}", total=None)
            simulation = make_simulation(args.load, policy, args.check_every)
            started = time.perf_counter()
            simulation.run(make_load(args.load, args.seed), args.requests)
            bar.update(task, total=1, completed=1)
            try:
                rows += rows_of(policy, simulation, time.perf_counter() - started)
            except Overtaken as error:
                print(f"{args.load}, {policy}: {error}", file=sys.stderr)
                return 1
    print(text_table(HEADS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
