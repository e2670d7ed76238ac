"""How long running streams stand still while a long prompt arrives, and what that prompt waits.

    python -m deeproot.bench.stream_gap --url http://127.0.0.1:8000/v1

A few streams write; when each has written for a while, a long prompt of fresh random words is sent beside them. Counted are
the times between successive pieces of each stream, before that and until the prompt's first token. Works against any
OpenAI-compatible server that knows `ignore_eos`; with `--compare`, several are asked in turns.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Answer, Server
from deeproot.bench.live.in_turns import Shown, parser_of, run
from deeproot.bench.report.result import Column, How, Metric, Table
from deeproot.bench.report.text import percentile_cells
from deeproot.bench.ttft import WORDS
from deeproot.runtime.flags import whole

_BEFORE = 48
"""Pieces that each stream writes before the prompt is sent."""
STREAM_LEAST = _BEFORE + 1
"""Tokens of a stream."""
_SKIPPED = 8
"""The first pieces of a stream, while others are still starting."""
_SHARES = (50, 99)
"""Percentiles that are shown."""


@dataclass(frozen=True, slots=True)
class Interference:
    """One round. Seconds. `covered`: every stream still wrote when the prompt's first token came."""

    quiet: tuple[float, ...]
    """Times between pieces before the prompt was sent."""
    busy: tuple[float, ...]
    """Those that began or ended between then and the prompt's first token."""
    ttft_s: float
    prompt_tokens: int
    covered: bool


async def interfere(server: Server, streams: int, words: int, max_tokens: int, seed: int) -> Interference:
    """One round. Raises ValueError if a request fails."""
    rng = random.Random(seed)
    origin = time.perf_counter()
    under_way = asyncio.Event()
    pieces = [0] * streams

    async def stream(number: int) -> Answer:
        def note(answer: Answer) -> None:
            pieces[number] = len(answer.pieces)
            if min(pieces) >= _BEFORE:
                under_way.set()

        task = f"Write a very long story about a {rng.choice(WORDS)} and a {rng.choice(WORDS)}."
        answer = await server.ask(_ask(f"stream {number}", task, max_tokens), origin, note)
        under_way.set()  # it may have failed
        return answer

    async def prompt() -> Answer:
        text = " ".join(rng.choice(WORDS) for _ in range(words))
        await under_way.wait()
        return await server.ask(_ask("prompt", text, 1), origin)

    long, *written = await asyncio.gather(prompt(), *(stream(i) for i in range(streams)))
    return _seen(long, written)


def _ask(name: str, text: str, max_tokens: int) -> Ask:
    messages = ({"role": "user", "content": text},)
    return Ask(name, 1, 0.0, max_tokens, messages=messages, ignore_eos=True)


def _seen(long: Answer, written: Sequence[Answer]) -> Interference:
    for answer in (long, *written):
        if answer.error is not None:
            raise ValueError(f"{answer.session}: {answer.error}")
    sent = long.sent_s
    # One token may be no text: then the end of its answer is the first that is seen of it.
    first = sent + (long.total_s if long.ttft_s is None else long.ttft_s)
    quiet, busy = [], []
    for answer in written:
        times = [answer.sent_s + at for at in answer.pieces[_SKIPPED:]]
        for one, other in pairwise(times):
            if other < sent:
                quiet.append(other - one)
            elif one < first:
                busy.append(other - one)
    ends = [answer.sent_s + answer.pieces[-1] for answer in written if answer.pieces]
    covered = len(ends) == len(written) and min(ends) > first
    return Interference(tuple(quiet), tuple(busy), first - sent, long.prompt_tokens or 0, covered)


def tables(found: dict[str, list[Interference]]) -> tuple[Table, ...]:
    rows = []
    for name, rounds in found.items():
        quiet = [1e3 * gap for r in rounds for gap in r.quiet]
        busy = [1e3 * gap for r in rounds for gap in r.busy]
        rows.append(
            (
                name,
                f"{sum(r.covered for r in rounds)} of {len(rounds)}",
                *percentile_cells(quiet, _SHARES, 0),
                *percentile_cells(busy, _SHARES, 0),
                ", ".join(f"{max(r.busy, default=0) * 1e3:,.0f}" for r in rounds),
                f"{median(r.ttft_s for r in rounds) * 1e3:,.0f}",
                f"{median(r.prompt_tokens for r in rounds):,.0f}",
            )
        )
    columns = (
        Column("server"),
        Column("covered", How.COUNTED),
        *(Column(f"before, p{share}, ms", How.MEASURED) for share in _SHARES),
        *(Column(f"beside the prompt, p{share}, ms", How.MEASURED) for share in _SHARES),
        Column("worst of each round, ms", How.MEASURED),
        Column("prompt's first token, ms", How.MEASURED),
        Column("its tokens", How.COUNTED),
    )
    note = "Covered: rounds in which every stream still wrote when the prompt's first token came."
    return (Table("Times between a stream's pieces", columns, tuple(rows), note),)


def metrics(found: dict[str, list[Interference]]) -> tuple[Metric, ...]:
    made = []
    for name, rounds in found.items():
        for what, samples in (
            ("gap before the prompt", tuple(1e3 * gap for r in rounds for gap in r.quiet)),
            ("gap beside the prompt", tuple(1e3 * gap for r in rounds for gap in r.busy)),
            ("worst gap of a round", tuple(1e3 * max(r.busy, default=0.0) for r in rounds)),
            ("prompt's first token", tuple(1e3 * r.ttft_s for r in rounds)),
        ):
            if samples:
                made.append(Metric(name=f"{what}, {name}", unit="ms", how=How.MEASURED, samples=samples))
    return tuple(made)


def main(argv: Sequence[str] | None = None) -> int:
    parser, group = parser_of(__doc__)
    group.add_argument("--streams", type=whole(1), default=1, help="that write (default: %(default)s)")
    group.add_argument(
        "--words",
        type=whole(1),
        default=5900,
        help="of the prompt, about a token each (default: %(default)s)",
    )
    group.add_argument(
        "--max-tokens", type=whole(STREAM_LEAST), default=512, help="of a stream (default: 512)"
    )
    args = parser.parse_args(argv)

    def once(server: Server, seed: int) -> Awaitable[Interference]:
        return interfere(server, args.streams, args.words, args.max_tokens, seed)

    def shown(found: dict[str, list[Interference]]) -> Shown:
        title = f"{args.streams} stream(s) beside a prompt of {args.words:,} words"
        return Shown(title, metrics(found), tables(found))

    return run("stream_gap", args, once, once, shown)


if __name__ == "__main__":
    sys.exit(main())
