"""What leases, sessions and their order of eviction are worth on a real server, beside plain least recently used.

    python -m deeproot.bench.hints_live --model MODEL --out bench/results/hints_live

Starts `deeproot serve` for each round of each way, in turns, with a KV cache of a quarter of what its agents work with. Eight
agents pause for tools while single prompts come in; the requests of a round are the same for both, with a session's name and
`cache_control` on the system prompt as clients give them. `lru` is the same server with `--radix-eviction-policy lru`. Hit rates
are the server's own counters; times are the client's. `bench/hints.py` does the same at greater length in simulated time.

With `--keep FILE` a call that is broken off goes on where it was, and one with more `--rounds` adds to those that are there.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from deeproot.bench.chaos.server import Server, running
from deeproot.bench.hints_player import CALL_TOKENS, TIMEOUT_S, play
from deeproot.bench.hints_rounds import Run, Sizes, all_rounds, each_round, keep, kept, metrics, pairs
from deeproot.bench.hints_trace import Message, Session, Shape, made_call, singles, tools
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.report.output import write_page
from deeproot.bench.report.progress import progress
from deeproot.bench.report.result import Result
from deeproot.bench.report.text import as_text
from deeproot.runtime.flags import number, whole

ARMS = {"least recently used": "lru", "classes, leases, sessions": "hints"}
_SIZING = ("--kv-cache-memory-bytes", str(2**26))


def measure_sizes(flags: Sequence[str], shape: Shape, seed: int, page: int) -> Sizes:
    """By a server that tokenises every prompt of the agents."""
    with running((*flags, "--page-size", str(page), *_SIZING)) as server:
        pages = sum(v for name, v in server.metrics().items() if name.startswith("deeproot_pages{"))
        working, longest = count_tokens(server.url, shape, seed)
    return Sizes(working, longest, page, -(-int(_SIZING[1]) // int(pages)))


def count_tokens(url: str, shape: Shape, seed: int) -> tuple[int, int]:
    """What the agents work with, the root once, and the longest request with its reply."""
    with httpx.Client(base_url=url, timeout=TIMEOUT_S) as http:
        root = _count(http, Session(shape, seed, 0).messages()[:1])
        most = [_longest(http, Session(shape, seed, i)) for i in range(shape.sessions)]
        cold = max((_count(http, messages) for _, messages in singles(shape, seed)), default=0)
    return sum(most) - (len(most) - 1) * root, max(*most, cold) + CALL_TOKENS


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
    flags: Sequence[str], arm: str, sizes: Sizes, shape: Shape, args: argparse.Namespace, seed: int
) -> Run:
    """A server of its own, and the whole trace."""
    num_pages = pool_pages(sizes, args.share)
    memory = ("--kv-cache-memory-bytes", str(num_pages * sizes.page_bytes), "--page-size", str(sizes.page))
    with running((*flags, "--radix-eviction-policy", ARMS[arm], *memory)) as server:
        answers, seconds = asyncio.run(play(server.url, shape, seed, one_by_one=args.one_by_one))
        counters = _settled(server, sum(a.error is None for a in answers))
        return Run(arm, seed, sizes, num_pages, answers, seconds, counters)


def _settled(server: Server, answered: int) -> Mapping[str, float]:
    """The counters when all answered requests are counted; RuntimeError if that does not come."""
    for _ in range(100):
        found = server.metrics()
        if sum(v for name, v in found.items() if name.startswith("deeproot_requests_total{")) >= answered:
            return found
        time.sleep(0.1)
    raise RuntimeError("the server has not counted all requests that it answered")


def played(
    args: argparse.Namespace, shape: Shape, flags: Sequence[str], common: Mapping[str, Any]
) -> list[Run]:
    """Every way in turns, `args.rounds` times, each round with a trace of its own; what was kept counts."""
    runs = [] if args.keep is None else kept(args.keep, common)
    there = {(run.seed, run.arm) for run in runs}
    with progress("hints_live", args.rounds * len(ARMS)) as advance:
        for seed in range(args.seed, args.seed + args.rounds):
            arms = [arm for arm in list(ARMS)[:: -1 if seed % 2 else 1] if (seed, arm) not in there]
            sizes = measure_sizes(flags, shape, seed, args.page_size) if arms else None
            for arm in arms:
                assert sizes is not None, "measured for whatever is missing"
                runs.append(run_arm(flags, arm, sizes, shape, args, seed))
                if args.keep is not None:
                    keep(args.keep, common, runs[-1])
                advance(f"{arm}, seed {seed}")
    return runs


def measured(args: argparse.Namespace, shape: Shape, flags: Sequence[str]) -> Result:
    """All rounds, those that were kept among them."""
    before = environment()
    settings = settings_of(args)
    own = ("keep", "rounds", "seed")
    runs = played(args, shape, flags, {name: value for name, value in settings.items() if name not in own})
    rounds, arms = pairs(runs, list(ARMS)), list(ARMS)
    errors = [a.error for run in runs for a in run.answers if a.error]
    working, pages = (f"{min(values):,} to {max(values):,}" for values in _ranges(runs))
    return Result(
        command="hints_live",
        title=f"{shape.sessions} agents of {shape.turns} turns beside {shape.cold} single prompts, on a real server",
        environment=before,
        settings=settings,
        metrics=metrics(runs, arms),
        tables=(all_rounds(rounds, arms), each_round(runs)),
        notes=(
            f"The agents work with {working} tokens; the pool holds {pages} pages of {args.page_size}: {args.share:.0%} of"
            " them, but room for the longest request at least. Each round has requests of its own, the same for every way.",
            "Cached tokens, computed ones and evicted pages are the server's counters; the agents' share is what the"
            " server says with each answer. Times are the client's, up to the first piece of the stream.",
            f"Load of the machine before: {before['load before']}.",
            *(f"Refused or failed, for instance: {error}" for error in errors[:1]),
        ),
    )


def _ranges(runs: Sequence[Run]) -> tuple[list[int], list[int]]:
    return [run.sizes.working for run in runs], [run.num_pages for run in runs]


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
    parser.add_argument("--seed", type=int, default=0, help="of the first round; each other's is one higher")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="add each run to this file, and do not repeat those that it has",
    )
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
