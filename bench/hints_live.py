"""What leases, sessions and their order of eviction are worth on a real server, beside plain least recently used.

    python -m deeproot.bench.hints_live --model MODEL --out bench/results/hints_live

Starts `deeproot serve` for each round of each way, in turns, with a KV cache of a quarter of what its agents work with. Eight
agents pause for tools while single prompts come in; the requests are the same each time, with a session's name and
`cache_control` on the system prompt as clients give them. `lru` is the same server with `--radix-eviction-policy lru`. Hit rates
are the server's own counters; times are the client's. `bench/hints.py` does the same at greater length in simulated time.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np

from deeproot.bench.chaos.server import Server, running
from deeproot.bench.hints_player import CALL_TOKENS, TIMEOUT_S, Answered, play
from deeproot.bench.hints_trace import Message, Session, Shape, made_call, singles, tools
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import write_page
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Column, How, Metric, Result, Table
from deeproot.bench.report.text import as_text
from deeproot.runtime.flags import number, whole

ARMS = {"least recently used": "lru", "classes, leases, sessions": "hints"}
_SIZING = ("--kv-cache-memory-bytes", str(2**26))


@dataclass(frozen=True, slots=True)
class Run:
    """One round of one way. `counters`: the server's own at its end."""

    answers: list[Answered]
    seconds: float
    counters: Mapping[str, float]

    def ttfts(self, kind: str | None) -> list[float]:
        return [a.ttft_s for a in self.answers if a.ttft_s is not None and kind in (None, a.kind)]

    @property
    def hit_rate(self) -> float:
        """By the server's counters."""
        return self.counters["deeproot_cached_tokens_total"] / self.counters["deeproot_prompt_tokens_total"]

    @property
    def leased_hits(self) -> float:
        """Cached tokens that were under a lease when they were found."""
        names = (f'deeproot_cache_hit_tokens_total{{class="{zone}"}}' for zone in ("leaf", "trunk", "root"))
        return sum(self.counters[name] for name in names)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens that the agents work with, the longest request, tokens of a page, and bytes of one."""

    working: int
    longest: int
    page: int
    page_bytes: int


def measure_sizes(flags: Sequence[str], shape: Shape, seed: int, page: int) -> Sizes:
    """By a server that tokenises every prompt of the agents."""
    with running((*flags, "--page-size", str(page), *_SIZING)) as server:
        pages = sum(v for name, v in server.metrics().items() if name.startswith("deeproot_pages{"))
        with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as http:
            root = _count(http, Session(shape, seed, 0).messages()[:1])
            most = [_longest(http, Session(shape, seed, i)) for i in range(shape.sessions)]
            cold = max((_count(http, messages) for _, messages in singles(shape, seed)), default=0)
    working = sum(most) - (len(most) - 1) * root
    return Sizes(working, max(*most, cold) + CALL_TOKENS, page, -(-int(_SIZING[1]) // int(pages)))


def _longest(http: httpx.Client, session: Session) -> int:
    most = 0
    for step in session.steps:
        most = max(most, _count(http, session.messages()))
        session.answered([made_call(step.tool)], step)
    return most


def _count(http: httpx.Client, messages: Sequence[Message]) -> int:
    response = http.post("/tokenize", json={"messages": messages, "tools": tools()})
    if response.is_error:
        raise ValueError(f"/tokenize: {response.status_code}: {response.text[:200]}")
    return int(response.json()["count"])


def pool_pages(sizes: Sizes, share: float) -> int:
    """For a share of the working tokens, but room for the longest request at least."""
    return max(int(sizes.working * share), sizes.longest) // sizes.page + 2


def run_arm(
    flags: Sequence[str], num_pages: int, sizes: Sizes, shape: Shape, seed: int, *, one_by_one: bool
) -> Run:
    """A server of its own, and the whole trace."""
    memory = ("--kv-cache-memory-bytes", str(num_pages * sizes.page_bytes), "--page-size", str(sizes.page))
    with running((*flags, *memory)) as server:
        answers, seconds = asyncio.run(play(server.url, shape, seed, one_by_one=one_by_one))
        return Run(answers, seconds, _settled(server, sum(a.error is None for a in answers)))


def _settled(server: Server, answered: int) -> Mapping[str, float]:
    """The counters when all answered requests are counted; RuntimeError if that does not come."""
    for _ in range(100):
        found = server.metrics()
        if sum(v for name, v in found.items() if name.startswith("deeproot_requests_total{")) >= answered:
            return found
        time.sleep(0.1)
    raise RuntimeError("the server has not counted all requests that it answered")


def table(runs: Mapping[str, Sequence[Run]]) -> Table:
    """A row for each round of each way."""
    rows = []
    for arm, rounds in runs.items():
        for i, one in enumerate(rounds, 1):
            agents = [a for a in one.answers if a.kind == "agent" and a.error is None]
            rows.append(
                (
                    f"{arm}, round {i}",
                    f"{one.hit_rate:.1%}",
                    f"{sum(a.cached for a in agents) / max(1, sum(a.prompt for a in agents)):.1%}",
                    f"{one.leased_hits:,.0f}",
                    f"{one.counters['deeproot_computed_tokens_total']:,.0f}",
                    f"{one.counters['deeproot_evicted_pages_total']:,.0f}",
                    f"{one.counters['deeproot_preemptions_total']:,.0f}",
                    f"{sum(a.error is None for a in one.answers)}",
                    f"{sum(a.error is not None for a in one.answers)}",
                    *(_ms(one.ttfts(kind), share) for kind in ("agent", "cold", None) for share in (50, 99)),
                    f"{one.seconds:.0f}",
                )
            )
    counted = (
        "prompt tokens cached", "of the agents'", "found under leases", "computed", "pages evicted", "preemptions", "answered", "refused",
    )  # fmt: skip
    timed = [f"TTFT {kind} p{share}, ms" for kind in ("agents", "single", "all") for share in (50, 99)]
    columns = [Column("order of eviction"), *(Column(title, How.COUNTED) for title in counted)]
    columns += [Column(title, How.MEASURED) for title in (*timed, "seconds")]
    return Table("The same requests to each", tuple(columns), tuple(rows))


def _ms(seconds: Sequence[float], share: int) -> str:
    return f"{np.percentile(seconds, share) * 1e3:,.0f}" if seconds else "-"


def metrics(runs: Mapping[str, Sequence[Run]]) -> tuple[Metric, ...]:
    made = []
    for arm, rounds in runs.items():
        hits = tuple(one.hit_rate for one in rounds)
        made.append(
            Metric(name=f"cached share, {arm}", unit="", how=How.COUNTED, samples=hits, higher_is_better=True)
        )
        for kind in ("agent", "cold"):
            samples = tuple(1e3 * s for one in rounds for s in one.ttfts(kind))
            if samples:
                made.append(Metric(name=f"TTFT {kind}, {arm}", unit="ms", how=How.MEASURED, samples=samples))
    return tuple(made)


def measured(args: argparse.Namespace, shape: Shape, flags: Sequence[str]) -> Result:
    """Every way in turns, `args.rounds` times."""
    before = environment()
    sizes = measure_sizes(flags, shape, args.seed, args.page_size)
    num_pages = pool_pages(sizes, args.share)
    runs: dict[str, list[Run]] = {arm: [] for arm in ARMS}
    with progress("hints_live", args.rounds * len(ARMS)) as advance:
        for i in range(args.rounds):
            for arm, policy in list(ARMS.items())[:: -1 if i % 2 else 1]:
                own = (*flags, "--radix-eviction-policy", policy)
                runs[arm].append(run_arm(own, num_pages, sizes, shape, args.seed, one_by_one=args.one_by_one))
                advance(arm)
    errors = [a.error for rounds in runs.values() for one in rounds for a in one.answers if a.error]
    return Result(
        command="hints_live",
        title=f"{shape.sessions} agents of {shape.turns} turns beside {shape.cold} single prompts, on a real server",
        environment=before,
        settings={**settings_of(args), "pages": num_pages, "working-tokens": sizes.working},
        metrics=metrics(runs),
        tables=(table(runs),),
        notes=(
            f"The agents work with {sizes.working:,} tokens; the pool holds {num_pages} pages of {sizes.page}, which is"
            f" {num_pages * sizes.page / sizes.working:.0%} of them. The longest request has {sizes.longest:,}.",
            "Cached tokens, computed ones and evicted pages are the server's counters; the agents' share is what the"
            " server says with each answer. Times are the client's, up to the first piece of the stream.",
            f"Load of the machine before: {before['load before']}.",
            *(f"Refused or failed, for instance: {error}" for error in errors[:1]),
        ),
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="of the servers")
    parser.add_argument(
        "--serve", nargs=argparse.REMAINDER, default=[], help="further flags of the servers, last"
    )
    parser.add_argument("--sessions", type=whole(1), default=8)
    parser.add_argument("--turns", type=whole(1), default=12, help="of each session")
    parser.add_argument("--cold", type=whole(0), default=120, help="single prompts")
    parser.add_argument(
        "--cold-every-s", type=number(0.001), default=0.8, help="mean time between two of them"
    )
    parser.add_argument("--pace", type=number(0.001), default=1.0, help="factor on all pauses and times")
    parser.add_argument("--words", type=number(0.01), default=1.0, help="factor on all lengths")
    parser.add_argument(
        "--share", type=number(0.01, 10), default=0.25, help="of the agents' tokens, in the pool"
    )
    parser.add_argument(
        "--one-by-one",
        action="store_true",
        help="no times and one request after another: counts that do not depend on the machine's speed",
    )
    parser.add_argument("--page-size", type=whole(16), default=64)
    parser.add_argument("--rounds", type=whole(1), default=2, help="of each way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write README.md and result.json there")
    args = parser.parse_args(argv)
    sizes = {
        name: max(1, round(getattr(Shape(), name) * args.words))
        for name in ("root", "task", "output", "most", "cold_words")
    }
    shape = Shape(
        sessions=args.sessions, turns=args.turns, cold=args.cold, cold_every_s=args.cold_every_s, pace=args.pace, **sizes
    )  # fmt: skip
    try:
        result = measured(args, shape, ("--model", args.model, *args.serve))
    except (OSError, ValueError, RuntimeError) as error:
        print(f"hints_live: {error}", file=sys.stderr)
        return 2
    print(as_text(result))
    if args.out is not None:
        write_page(args.out, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
