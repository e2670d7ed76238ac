"""What leases and sessions are worth when pages are short: agents that wait for tools beside a flood of single prompts.

    python -m deeproot.bench.hints

Eight sessions of tool calls share a pool of a quarter of the tokens that they work with. The same requests go through the
product's scheduler and tree without any hints (least recently used alone), with leases, with what sessions leave, and
with both. Time is simulated (`simulator`), so the run gives the same figures on any machine: hit rates are the
scheduler's own counters, times are those of the simulated device.
"""

import argparse
import dataclasses
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from deeproot.bench.cachesim.made_runs import Spread
from deeproot.bench.simulator.clock import StepCost
from deeproot.bench.simulator.load import Call, Flood, Source, made_tokens
from deeproot.bench.simulator.simulate import Beginnings, Record, Simulation
from deeproot.engine.batch import Int32Array
from deeproot.engine.eviction import EvictionClass
from deeproot.engine.leases import LeaseLimits
from deeproot.runtime.chat.boundaries import conversation, in_order
from deeproot.runtime.options import EngineOptions
from deeproot.runtime.server.hinting import ROOT_LEASE_S
from deeproot.runtime.tool_pauses import ToolPauses
from deeproot.scheduler.config import Policy, SchedulerConfig
from deeproot.scheduler.messages import Boundary, TokenOutput

PAGE = 64
_LONGEST = 9000
"""Tokens of the longest request."""


@dataclass(frozen=True, slots=True)
class Turn(Call):
    """A request of an agent that is answered with a tool call."""

    tool: str = ""
    root: int = 0
    """Tokens that all agents begin with."""
    newest: int = 0
    """Where the latest messages begin."""


@dataclass(frozen=True, slots=True)
class Agents:
    """Sessions whose tools take seconds to minutes and whose history is cut when it gets long. Tokens and seconds."""

    sessions: int = 8
    turns: int = 40
    root_tokens: int = 1500
    task_tokens: int = 400
    answer: Spread = field(default_factory=lambda: Spread(40, 0.5))
    output: Spread = field(default_factory=lambda: Spread(300, 0.8))
    most: int = 8000
    """Above this the older half of the history is replaced by a short text."""
    tools: tuple[tuple[str, Spread], ...] = (
        ("read_file", Spread(1, 0.5)),
        ("run_tests", Spread(15, 0.5)),
        ("build", Spread(60, 0.4)),
    )

    def sources(self, seed: int) -> Iterator[tuple[float, Source]]:
        root = made_tokens(np.random.default_rng(seed), self.root_tokens)
        for number in range(self.sessions):
            rng = np.random.default_rng((seed, number))
            yield float(number), self._session(rng, root, f"agent {number}", float(number))

    def _session(
        self, rng: np.random.Generator, root: Int32Array, name: str, now: float
    ) -> Generator[Call, float, None]:
        history = np.concatenate([root, made_tokens(rng, self.task_tokens)])
        newest = len(root)
        for _ in range(self.turns):
            answer = made_tokens(rng, min(self.answer.count(rng), 200))
            tool, pause = self.tools[int(rng.integers(len(self.tools)))]
            turn = Turn("agent", now, history, answer, name, tool=tool, root=len(root), newest=newest)
            ended = yield turn
            now = ended + pause.draw(rng)
            newest = len(history) + len(answer)
            history = np.concatenate([history, answer, made_tokens(rng, min(self.output.count(rng), 2000))])
            if len(history) > self.most:
                kept = history[len(root) + (len(history) - len(root)) // 2 :]
                history = np.concatenate([root, made_tokens(rng, 200), kept])
                newest = len(history)


class HintedSimulation(Simulation):
    """A simulation in which each end of an agent's turn is followed by what the server then tells the engine."""

    def __init__(
        self,
        config: SchedulerConfig,
        num_pages: int,
        *,
        leases: bool,
        sessions: bool,
        cost: StepCost | None = None,
    ) -> None:
        super().__init__(config, num_pages, PAGE, cost, check_every=1000)
        self._leases = leases
        self._sessions = sessions
        self._pauses = ToolPauses()
        self._turns: dict[str, Turn] = {}
        self._last_of: dict[str | None, str] = {}
        share = EngineOptions(model="").max_leased_share
        self.scheduler.cache.leases.limits = LeaseLimits(max_pages=int(num_pages * share))

    def _send(self, call: Call, source: Source) -> None:
        rid = str(len(self.records))
        if isinstance(call, Turn):
            self._turns[rid] = call
            self._pauses.returned(b"", [self._last_of.get(call.session, "")], self.clock.now)
            self._last_of[call.session] = rid
        if not self._sessions:
            call = dataclasses.replace(call, session="" if self._leases else None)
        super()._send(call, source)

    def _note(self, output: TokenOutput) -> None:
        super()._note(output)
        turn = self._turns.pop(output.rid, None) if output.finish_reason is not None else None
        if turn is None or not self._leases:
            return
        self._pauses.called(b"", [(output.rid, turn.tool)], self.clock.now)
        pause = self._pauses.expected(b"", [turn.tool])
        root = Boundary(turn.root, EvictionClass.ROOT, ROOT_LEASE_S)
        kept = in_order([root, *conversation(turn.root, turn.newest, pause, pause=True)])
        self.scheduler.claims.hold(output.rid, kept)


@dataclass(frozen=True, slots=True)
class Arm:
    name: str
    leases: bool
    sessions: bool


ARMS = (
    Arm("least recently used", leases=False, sessions=False),
    Arm("what sessions leave goes first", leases=False, sessions=True),
    Arm("classes and leases", leases=True, sessions=False),
    Arm("all of it", leases=True, sessions=True),
)


def run(
    arm: Arm,
    agents: Agents,
    flood: Flood,
    num_cold: int,
    num_pages: int,
    seed: int,
    policy: Policy = "fcfs",
    cost: StepCost | None = None,
) -> HintedSimulation:
    """All turns of all agents, and `num_cold` single prompts spread over them; every one is answered."""
    config = SchedulerConfig(16, 1024, num_pages * PAGE, policy=policy)
    simulation = HintedSimulation(config, num_pages, leases=arm.leases, sessions=arm.sessions, cost=cost)
    loads: list[Beginnings] = [agents.sources(seed), _first(flood.sources(seed + 1), num_cold)]
    simulation.run(loads, agents.sessions * agents.turns + num_cold)
    return simulation


def row(arm: Arm, simulation: HintedSimulation) -> str:
    """A line of the table."""
    counters, records = simulation.scheduler.counters, simulation.records
    agents = [record for record in records if record.kind == "agent"]
    cells = [
        arm.name,
        f"{counters.cached / counters.prompt:.1%}",
        f"{1 - sum(r.num_computed for r in agents) / sum(r.num_prompt for r in agents):.1%}",
        f"{sum(r.num_computed for r in records):,}",
        f"{counters.evicted_pages:,}",
        *(f"{_ttft(records, kind):.2f}" for kind in ("agent", "cold")),
        f"{_ttft(records, None):.2f}",
        f"{len(records)}",
        f"{counters.preemptions}",
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = (
    "| | prompt tokens cached | of the agents' | prompt tokens computed | pages evicted | p99 TTFT, agents, s | cold, s |"
    " all, s | answered | preemptions |\n|---|---|---|---|---|---|---|---|---|---|"
)


def _ttft(records: Sequence[Record], kind: str | None) -> float:
    return float(np.percentile([r.first_token - r.came for r in records if kind in (None, r.kind)], 99))


def _first(sources: Iterator[tuple[float, Source]], count: int) -> Iterator[tuple[float, Source]]:
    return (source for _, source in zip(range(count), sources, strict=False))


def pool_pages(working: int, share: float, longest: int = _LONGEST) -> int:
    """Pages for a share of the working tokens, but room for the longest request at least."""
    return max(int(working * share), longest) // PAGE


def working_tokens(agents: Agents, seed: int) -> int:
    """What the sessions work with at most at a time: the longest prompt of each, the root once."""
    longest = 0
    for _, source in agents.sources(seed):
        sizes, call = [], next(source)
        try:
            while True:
                sizes.append(len(call.prompt) + len(call.answer) - agents.root_tokens)
                call = source.send(0.0)
        except StopIteration:
            longest += max(sizes)
    return longest + agents.root_tokens


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=40, help="of each session")
    parser.add_argument("--cold", type=int, default=1500, help="single prompts")
    parser.add_argument("--cold-every-s", type=float, default=0.7, help="mean time between two of them")
    parser.add_argument(
        "--share", type=float, default=0.25, help="of the sessions' tokens, what the pool holds"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    agents, flood = Agents(turns=args.turns), Flood(arrival_s=args.cold_every_s, window=4000)
    working = working_tokens(agents, args.seed)
    num_pages = pool_pages(working, args.share)
    print(f"{working:,} tokens of sessions, {num_pages} pages of {PAGE} tokens\n\n{HEAD}")
    for arm in ARMS:
        print(row(arm, run(arm, agents, flood, args.cold, num_pages, args.seed)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
