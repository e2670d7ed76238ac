"""Time to first token with and without a cached prefix, against any OpenAI-compatible server.

    python -m deeproot.bench.ttft --base-url http://127.0.0.1:8000/v1

Each round makes a prompt of fresh random words, so that nothing of it can be cached, and sends it twice with another
question at its end: cold, then with its prefix cached. Medians over the rounds; one warm-up round is not counted.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from deeproot.runtime.http_api import lines_of

WORDS = [
    "river",
    "stone",
    "window",
    "garden",
    "paper",
    "market",
    "letter",
    "winter",
    "yellow",
    "engine",
    "bridge",
    "forest",
    "simple",
    "doctor",
    "number",
    "island",
    "summer",
    "silver",
    "quiet",
    "planet",
    "copper",
    "finger",
    "orange",
    "castle",
    "branch",
    "morning",
    "travel",
    "kitchen",
    "useful",
    "common",
]


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the client saw it."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    cold: Sample
    warm: Sample


def ask(client: httpx.Client, model: str, document: str, question: str, max_tokens: int) -> Sample:
    """Stream one chat completion and take the time to its first content.

    Raises httpx.HTTPStatusError when the server refuses it.
    """
    body = {
        "model": model,
        "messages": [{"role": "system", "content": document}, {"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    start, first, usage = time.perf_counter(), None, None
    with client.stream("POST", "chat/completions", json=body) as response:
        if response.is_error:
            response.read()
        response.raise_for_status()
        for line in lines_of(response.iter_bytes()):
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            if first is None and any(choice["delta"].get("content") for choice in chunk["choices"]):
                first = time.perf_counter() - start
    if first is None or usage is None:
        raise RuntimeError("the server sent no content or no usage")
    return Sample(
        first, usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    )


def run(client: httpx.Client, model: str, num_words: int, rounds: int, seed: int) -> list[Round]:
    """`rounds` pairs of a cold and a warm request on documents of `num_words` random words."""
    rng = random.Random(seed)
    results = []
    for i in range(rounds + 1):
        document = " ".join(rng.choice(WORDS) for _ in range(num_words))
        cold = ask(client, model, document, "Which word comes first?", 4)
        warm = ask(client, model, document, "How many words are there?", 4)
        if i:
            results.append(Round(cold, warm))
        print(f"\r{i}/{rounds} rounds", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def summarize(rounds: list[Round]) -> dict[str, float]:
    """Medians; the ratio is taken round by round."""

    def median(values: list[float]) -> float:
        return statistics.median(values)

    return {
        "prompt_tokens": median([r.cold.prompt_tokens for r in rounds]),
        "warm_cached_tokens": median([r.warm.cached_tokens for r in rounds]),
        "cold_ttft_ms": median([r.cold.ttft_s for r in rounds]) * 1e3,
        "warm_ttft_ms": median([r.warm.ttft_s for r in rounds]) * 1e3,
        "cold_prefill_tokens_per_s": median([r.cold.prompt_tokens / r.cold.ttft_s for r in rounds]),
        "ratio": median([r.cold.ttft_s / r.warm.ttft_s for r in rounds]),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument(
        "--words", type=int, default=3000, help="words in the shared prefix, about one token each"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seed", type=int, default=None, help="default: from the clock, so that no cache has it"
    )
    parser.add_argument("--out", type=Path, help="write JSON here")
    args = parser.parse_args(argv)
    seed = time.time_ns() if args.seed is None else args.seed
    with httpx.Client(base_url=args.base_url, timeout=300) as client:
        model = args.model or client.get("models").raise_for_status().json()["data"][0]["id"]
        rounds = run(client, model, args.words, args.rounds, seed)
    summary = summarize(rounds)
    for name, value in summary.items():
        print(f"{name:28} {value:10.1f}")
    if args.out:
        machine = {
            "processor": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        }
        record = {"model": model, "seed": seed, "machine": machine, "summary": summary}
        args.out.write_text(json.dumps({**record, "rounds": [asdict(r) for r in rounds]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
