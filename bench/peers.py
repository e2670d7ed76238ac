"""How servers of one model compare on one machine: what an agent and its user wait for.

    python -m deeproot.bench.peers --compare URL=NAME URL=NAME --rounds 3
    python -m deeproot.bench.peers --servers FILE --rounds 3

In each round every server is asked in turn for the same things: prompts of fresh random words at several lengths, fifty new
words behind a long prompt that it has just answered, one stream, eight at once, an agent whose turns send back
what was answered, and a stream beside which a long prompt arrives. Works against any OpenAI-compatible server that streams
usage and knows `ignore_eos`. With `--servers` they are started here, and ended, as `bench/results/peers/servers.toml` shows.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Sequence
from statistics import median

from deeproot.bench.live.asks import Ask
from deeproot.bench.live.client import Answer, Server
from deeproot.bench.live.in_turns import Shown, parser_of, run
from deeproot.bench.report.result import Column, How, Metric, Table
from deeproot.bench.stream_gap import STREAM_LEAST, interfere
from deeproot.bench.ttft import WORDS
from deeproot.runtime.flags import whole

_TEMPLATE_TOKENS = 24
"""Of a prompt, about as many come from the template and its first words."""
_NEW_WORDS = 50
_WARM_ASKS = 3
_STREAM_TOKENS = 128
_RESULT_WORDS, _TURN_TOKENS = 290, 32

PAUSE = "stream's longest pause beside a prompt"
Figures = dict[str, float]
"""By name as in `UNITS`. There is no `PAUSE` where the stream had ended before the prompt's first token came."""

UNITS = {
    "warm TTFT": "ms",
    "1 stream": "tok/s",
    "8 streams": "tok/s",
    "agent": "s",
    "agent's mean TTFT": "ms",
    PAUSE: "ms",
    "that prompt's TTFT": "ms",
}


def prefill_name(words: int) -> str:
    return f"prefill of {words:,}"


async def one_round(
    server: Server, lengths: Sequence[int], turns: int, gap_tokens: int, seed: int
) -> Figures:
    """Every figure once. Raises ValueError if a request fails."""
    asker = _Asker(server, random.Random(seed))
    found: Figures = {}
    for words in lengths:
        answer = await asker.ask(asker.prompt(words - _TEMPLATE_TOKENS), 1)
        found[prefill_name(words)] = (answer.prompt_tokens or words) / _first(answer)
    found["warm TTFT"] = 1e3 * await _warm(asker, max(lengths))
    for streams in (1, 8):
        found[f"{streams} stream{'s' * (streams > 1)}"] = await _rate(asker, streams)
    found["agent"], found["agent's mean TTFT"] = await _agent(asker, turns)
    seen = await interfere(server, 1, max(lengths) - _TEMPLATE_TOKENS, gap_tokens, seed)
    if seen.covered:
        found[PAUSE] = 1e3 * max(seen.busy, default=0.0)
    found["that prompt's TTFT"] = 1e3 * seen.ttft_s
    return found


class _Asker:
    def __init__(self, server: Server, rng: random.Random) -> None:
        self._server = server
        self._rng = rng

    def words(self, count: int) -> str:
        return " ".join(self._rng.choice(WORDS) for _ in range(count))

    def prompt(self, words: int) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.words(4)}, {"role": "user", "content": self.words(words)}]

    async def ask(self, messages: Sequence[dict[str, str]], max_tokens: int) -> Answer:
        ask = Ask("peers", 1, 0.0, max_tokens, messages=tuple(messages), ignore_eos=True)
        answer = await self._server.ask(ask, time.perf_counter())
        if answer.error is not None:
            raise ValueError(f"{self._server.name}: {answer.error}")
        return answer


def _first(answer: Answer) -> float:
    """Seconds to the first token; one that is no text is first seen at the answer's end."""
    return answer.total_s if answer.ttft_s is None else answer.ttft_s


async def _warm(asker: _Asker, words: int) -> float:
    system, user = asker.prompt(words - _TEMPLATE_TOKENS)

    async def longer() -> float:
        said = {**user, "content": f"{user['content']} {asker.words(_NEW_WORDS)}"}
        return _first(await asker.ask([system, said], 1))

    await longer()
    return median([await longer() for _ in range(_WARM_ASKS)])


async def _rate(asker: _Asker, streams: int) -> float:
    """Tokens a second: of one stream behind its first token, of several from when they were sent."""
    stories = [
        [{"role": "user", "content": f"Write a very long story about {asker.words(8)}."}]
        for _ in range(streams)
    ]
    start = time.perf_counter()
    answers = await asyncio.gather(*(asker.ask(story, _STREAM_TOKENS) for story in stories))
    wall = time.perf_counter() - start
    if streams > 1:
        return sum(answer.output_tokens or 0 for answer in answers) / wall
    (answer,) = answers
    if answer.tpot_s is None:
        raise ValueError("a stream of 128 tokens had no two pieces, or no usage")
    return 1 / answer.tpot_s


async def _agent(asker: _Asker, turns: int) -> tuple[float, float]:
    """Seconds for all turns, and milliseconds to a turn's first token on average."""
    tools = f"You are an agent that calls tools. Tools: {asker.words(90)}"
    messages = [{"role": "system", "content": tools}]
    waits, start = [], time.perf_counter()
    for turn in range(turns):
        result = f"Tool result {turn}: {asker.words(_RESULT_WORDS)}"
        messages.append({"role": "user", "content": result})
        answer = await asker.ask(messages, _TURN_TOKENS)
        waits.append(_first(answer))
        messages.append({"role": "assistant", "content": answer.said or "ok"})
    return time.perf_counter() - start, 1e3 * sum(waits) / len(waits)


async def warm_up(server: Server, seed: int) -> None:
    """What a server does only once, it does before it is timed."""
    asker = _Asker(server, random.Random(seed))
    await asker.ask(asker.prompt(600), 16)


def units(lengths: Sequence[int]) -> dict[str, str]:
    return {prefill_name(words): "tok/s" for words in lengths} | UNITS


def metrics(found: dict[str, list[Figures]], lengths: Sequence[int]) -> tuple[Metric, ...]:
    return tuple(
        Metric(
            name=f"{name}, {server}",
            unit=unit,
            how=How.MEASURED,
            samples=samples,
            higher_is_better=unit == "tok/s",
        )
        for name, unit in units(lengths).items()
        for server, rounds in found.items()
        if (samples := tuple(one[name] for one in rounds if name in one))
    )


def table(found: dict[str, list[Figures]], lengths: Sequence[int]) -> Table:
    """A row for each figure, a column for each server, and how the first does against the best of the others."""
    first, *others = found
    rows = [("rounds", *(str(len(rounds)) for rounds in found.values()), *("" for _ in others[:1]))]
    for name, unit in units(lengths).items():
        samples = {server: [one[name] for one in rounds if name in one] for server, rounds in found.items()}
        medians = {server: median(taken) for server, taken in samples.items() if taken}
        row = [f"{name}, {unit}", *(f"{medians[s]:,.4g}" if s in medians else "-" for s in found)]
        if others:
            theirs = [medians[other] for other in others if other in medians]
            best = (max if unit == "tok/s" else min)(theirs, default=None)
            row.append("-" if best is None or first not in medians else f"{medians[first] / best:.2f}")
        rows.append(tuple(row))
    columns = [Column("medians"), *(Column(server, How.MEASURED) for server in found)]
    if others:
        columns.append(Column(f"{first} / best other", How.MEASURED))
    note = (
        "Prefill: prompt tokens by the time to the first token. Warm: 50 new words behind the longest prompt. "
        "No pause is given where the stream had ended before the prompt's first token: the prompt waited for it."
    )
    return Table("In turns on one machine", tuple(columns), tuple(rows), note)


def main(argv: Sequence[str] | None = None) -> int:
    parser, group = parser_of(__doc__)
    group.add_argument(
        "--lengths",
        type=whole(_TEMPLATE_TOKENS + 1),
        nargs="+",
        default=[512, 2048, 6000],
        metavar="N",
        help="of prompts, about as many tokens as words (default: 512 2048 6000)",
    )
    group.add_argument("--turns", type=whole(1), default=12, help="of the agent (default: %(default)s)")
    group.add_argument(
        "--gap-tokens",
        type=whole(STREAM_LEAST),
        default=512,
        help="of the stream beside which a prompt as long as the longest arrives (default: %(default)s)",
    )
    args = parser.parse_args(argv)

    def once(server: Server, seed: int) -> Awaitable[Figures]:
        return one_round(server, args.lengths, args.turns, args.gap_tokens, seed)

    def shown(found: dict[str, list[Figures]]) -> Shown:
        title = f"{args.rounds} rounds, to {' and '.join(found)}"
        return Shown(title, metrics(found, args.lengths), (table(found, args.lengths),))

    return run("peers", args, warm_up, once, shown)


if __name__ == "__main__":
    sys.exit(main())
