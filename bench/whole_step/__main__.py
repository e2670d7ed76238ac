"""What a streamed token costs the engine's process and the server's, without a model.

    python -m deeproot.bench.whole_step --out bench/results/whole_step

The server, the engine's process, what travels between them, scheduler, tree and pool are the product's; only the forward
pass is not there: it writes a given text, at the pace of a small model. Clients in a process of their own stream chats over
HTTP. Measured is the CPU time that each process takes, all its threads, between the moment at which every stream has begun
and the moment at which they near their ends: so of the engine match and admission are not in it, but building, sampling's
settings, booking and sending are; of the server detokenising, the reply's automaton, framing and writing. The engine's time
is given by step, the server's by token. What a request costs before its first token is measured by starting as many again.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from deeproot.bench.chaos.server import Server, running
from deeproot.bench.report.environment import environment, settings_of
from deeproot.bench.whole_step.server import ENGINE_MODULE
from deeproot.bench.whole_step.streams import Streams

ENGINE_BAR_MS = {8: 1.0, 256: 3.0}
"""By streams."""
SERVER_BAR_US = 40.0
_EDGE = 20
"""Tokens at each end of a stream that are not measured."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of so many streams."""

    streams: int
    tokens: int
    """All that were measured."""
    seconds: float
    engine_s: float
    """CPU time of the engine's process."""
    server_s: float
    start_engine_s: float
    """The same from before the first request until every stream has begun, all tokens in it."""
    start_server_s: float

    @property
    def engine_ms(self) -> float:
        """A step: in each, every stream gets a token."""
        return 1e3 * self.engine_s * self.streams / self.tokens

    @property
    def server_us(self) -> float:
        """A token."""
        return 1e6 * self.server_s / self.tokens


def cpu_time(pid: int) -> float:
    """Seconds that a process has computed, all its threads; by the clock that Linux has of each process."""
    return time.clock_gettime((~pid << 3) | 2)


async def measure(server: Server, count: int, num_tokens: int) -> Sample:
    """One round. Raises RuntimeError if a stream fails."""
    (engine,) = server.engines()
    streams = Streams(count, num_tokens)
    before = cpu_time(engine), cpu_time(server.pid)
    async with streams.open(server.port):
        await streams.all_have(_EDGE)
        began, first, start = (
            time.monotonic(),
            sum(streams.received),
            (cpu_time(engine), cpu_time(server.pid)),
        )
        await streams.all_have(num_tokens - _EDGE)
        end = cpu_time(engine), cpu_time(server.pid)
        seconds, tokens = time.monotonic() - began, sum(streams.received) - first
        await streams.all_have(num_tokens)
    return Sample(
        count,
        tokens,
        seconds,
        end[0] - start[0],
        end[1] - start[1],
        start[0] - before[0],
        start[1] - before[1],
    )


def table(samples: Sequence[Sample]) -> str:
    """Markdown: medians over the rounds, the least in brackets, beside the bars."""
    lines = [
        "| streams | engine, ms a step | bar | server, µs a token | bar | beginning a request, ms: engine | server |",
        "|---|---|---|---|---|---|---|",
    ]
    for count in sorted({sample.streams for sample in samples}):
        own = [sample for sample in samples if sample.streams == count]
        engine, server = [one.engine_ms for one in own], [one.server_us for one in own]
        starts = [
            # Without the tokens that were streamed meanwhile.
            statistics.median(max(0.0, 1e3 * begun / count - 1e3 * later * _EDGE / one.tokens) for one, begun, later in each)
            for each in (
                [(one, one.start_engine_s, one.engine_s) for one in own],
                [(one, one.start_server_s, one.server_s) for one in own],
            )
        ]  # fmt: skip
        bar = ENGINE_BAR_MS.get(count)
        lines.append(
            f"| {count} | {statistics.median(engine):.2f} ({min(engine):.2f}) | {'' if bar is None else f'{bar:g}'} "
            f"| {statistics.median(server):.1f} ({min(server):.1f}) | {SERVER_BAR_US:g} | {starts[0]:.2f} | {starts[1]:.2f} |"
        )
    return "\n".join(lines)


def run(model: Path, counts: Sequence[int], num_tokens: int, rounds: int) -> list[Sample]:
    """All rounds, after one that is not counted. Raises RuntimeError."""
    program = (sys.executable, "-P", "-m", "deeproot.bench.whole_step.server")
    flags = ("--model", str(model), "--max-num-seqs", str(max(counts)))
    with running(flags, program, ENGINE_MODULE) as server:
        asyncio.run(measure(server, min(counts), 3 * _EDGE))
        return [asyncio.run(measure(server, count, num_tokens)) for _ in range(rounds) for count in counts]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path.home() / ".cache" / "deeproot" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    parser.add_argument("--model", type=Path, default=default, help="whose tokenizer and template are used")
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--tokens", type=int, default=200, help="of each stream")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write FILE.md and FILE.json")
    args = parser.parse_args(argv)
    if args.tokens < 3 * _EDGE:
        parser.error(f"--tokens must be at least {3 * _EDGE}")
    made_on = environment(("numpy", "msgspec", "pyzmq", "uvicorn", "httptools", "uvloop"))
    samples = run(args.model, args.streams, args.tokens, args.rounds)
    print(table(samples))
    if args.out is not None:
        record: dict[str, Any] = {"environment": made_on, "settings": settings_of(args)}
        record["samples"] = [asdict(sample) for sample in samples]
        args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
        args.out.with_suffix(".md").write_text(report(made_on, args.rounds, samples))
    return 0


def report(made_on: dict[str, Any], rounds: int, samples: Sequence[Sample]) -> str:
    """The page of results."""
    machine = (
        f"{made_on['device']}, {made_on['processors']} cores, Python {made_on['python']}, load before the run "
        f"{made_on['load before']}"
    )
    return (
        "# The whole step without a model\n`python -m deeproot.bench.whole_step --out bench/results/whole_step`\n\n"
        "What a streamed token costs beside the forward pass: CPU time of the engine's process a step, and of the server's "
        f"a token, while chats are streamed to clients in another process. Medians of {rounds} rounds, in brackets the "
        f"least. Beginning a request: from its bytes to its first tokens. {machine}.\n\n{table(samples)}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
