"""Whether what hints do to the longest waits is more than chance: many small traces in simulated time.

    python -m deeproot.bench.hints_many --traces 30

Each trace is about as large as a round of `hints_live`, on a device that is made to be about as fast as SmolLM2-135M on two CPU
cores. The 99th percentile of one such trace is its third longest wait, and says little; of all traces together it says
more, and the lowest and highest of single traces show how little one of them does.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from deeproot.bench.cachesim.made_runs import Spread
from deeproot.bench.hints import ARMS, Agents, Arm, HintedSimulation, pool_pages, run, working_tokens
from deeproot.bench.report.text import text_table
from deeproot.bench.simulator.clock import StepCost
from deeproot.bench.simulator.load import Flood
from deeproot.runtime.flags import number, whole
from deeproot.scheduler.config import POLICIES, Policy

COST = StepCost(fixed_s=0.02, token_s=3e-4, read_s=1e-8)
AGENTS = Agents(
    turns=12,
    root_tokens=700,
    task_tokens=160,
    answer=Spread(28, 0.2),
    output=Spread(230, 0.4),
    most=2900,
    tools=(("read_file", Spread(0.5, 0.4)), ("run_tests", Spread(4, 0.4)), ("build", Spread(12, 0.4))),
)
FLOOD = Flood(arrival_s=0.8, prompt=Spread(330, 0.4), answer=Spread(8, 0.01), window=4000)
LONGEST = 3700
COLD = 120
COMPARED = (ARMS[0], ARMS[-1])
KINDS = {"agents": "agent", "single prompts": "cold", "all": None}


def play(arm: Arm, policy: Policy, share: float, seed: int) -> HintedSimulation:
    num_pages = pool_pages(working_tokens(AGENTS, seed), share, LONGEST)
    return run(arm, AGENTS, FLOOD, COLD, num_pages, seed, policy, COST)


def waits(simulation: HintedSimulation, kind: str | None) -> list[float]:
    """Seconds to the first token."""
    return [r.first_token - r.came for r in simulation.records if kind in (None, r.kind)]


def rows(policy: Policy, traces: Sequence[tuple[HintedSimulation, ...]]) -> list[tuple[str, ...]]:
    """traces: of each the simulation of every one of `COMPARED`."""
    columns = list(zip(*traces, strict=True))
    hits = [[s.scheduler.counters.cached / s.scheduler.counters.prompt for s in column] for column in columns]
    made = [
        (f"{policy}: prompt tokens cached", *(f"{np.mean(one):.1%}" for one in hits), *_differences(*hits))
    ]
    for name, kind in KINDS.items():
        for share in (50, 99):
            of_each = [[waits(s, kind) for s in column] for column in columns]
            single = [[float(np.percentile(one, share)) for one in column] for column in of_each]
            pooled = [float(np.percentile(np.concatenate(column), share)) for column in of_each]
            _, *spread = _differences(*single)
            total = f"{pooled[1] / pooled[0] - 1:+.0%}"
            made.append((f"{policy}: {name}, p{share}, s", *(f"{one:.2f}" for one in pooled), total, *spread))
    return made


def _differences(first: Sequence[float], second: Sequence[float]) -> tuple[str, str, str]:
    """In the mean, in the traces with the lowest and the highest, and how many of them are no worse than the first."""
    ratios = np.asarray(second) / np.asarray(first) - 1
    return (
        f"{np.mean(second) / np.mean(first) - 1:+.0%}",
        f"{ratios.min():+.0%} to {ratios.max():+.0%}",
        f"{int((ratios <= 0).sum())} of {len(ratios)}",
    )


HEADS = ("", *(arm.name for arm in COMPARED), "difference", "in single traces", "not above")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=whole(1), default=30)
    parser.add_argument(
        "--policies", nargs="+", choices=POLICIES, default=["hrrn"], help="order of the queue"
    )
    parser.add_argument(
        "--share", type=number(0.01, 10), default=0.25, help="of the sessions' tokens, in the pool"
    )
    args = parser.parse_args(argv)
    found = []
    for policy in args.policies:
        traces = [
            tuple(play(arm, policy, args.share, seed) for arm in COMPARED) for seed in range(args.traces)
        ]
        found += rows(policy, traces)
    print(text_table(HEADS, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
