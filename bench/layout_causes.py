"""Six ways to lay out the same conversation, through a running server: what each hits, and why it loses the rest.

    python -m deeproot.bench.layout_causes --base-url http://127.0.0.1:8000/v1

Each turn is one chat call of an agent that plans a journey: a system message, tools, and the history with the model's
own replies. The layouts differ in nothing but what their names say. The causes are the server's own explanations.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from deeproot.bench.report.text import text_table

Message = dict[str, Any]

RULES = (
    "You help people to plan their travels. Be brief and polite. Never invent a train or a hotel. Give prices in euros. "
    "Ask when something is not clear, and sum up what was agreed before you book anything."
)
PROFILE = "The user's name is Ann. She likes mountains, cheap hotels and long breakfasts."
QUESTIONS = (
    "Where could I go in June?",
    "Is that far by train?",
    "What would a week there cost?",
    "Which hotel would you take?",
    "Is there a bus to the lake?",
    "What should I bring along?",
    "Can I cancel if it rains?",
    "What do people eat there?",
    "Are there museums nearby?",
    "Shall we book it, then?",
)
_WINDOW = 4
"""Messages that the sliding window keeps."""


@dataclass(frozen=True, slots=True)
class State:
    """What a layout makes a call of."""

    turn: int
    history: Sequence[Message]
    """Questions and replies so far, the newest question last."""


@dataclass(slots=True)
class Result:
    """A layout's calls, in tokens."""

    prompt: int = 0
    cached: int = 0
    ceiling: int = 0
    misses: Counter[str] = field(default_factory=Counter)

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


Layout = Callable[[State], tuple[list[Message], list[Any]]]


def tools() -> list[Any]:
    """Tool schemas."""
    described = {
        "find_trains": ("Trains between two places on a day.", ("origin", "destination", "day")),
        "find_hotels": ("Hotels in a place, with prices.", ("place", "nights")),
        "weather": ("The weather in a place on a day.", ("place", "day")),
        "book": ("Book what was agreed.", ("offer", "name")),
    }
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text,
                "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in keys}},
            },
        }
        for name, (text, keys) in described.items()
    ]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def correct(state: State) -> tuple[list[Message], list[Any]]:
    """What never changes first, the history only growing."""
    return [_system(f"{RULES}\n{PROFILE}"), *state.history], tools()


def timestamp(state: State) -> tuple[list[Message], list[Any]]:
    """The time of the call in the system message's first line."""
    now = f"Time: 2026-03-05 10:{state.turn:02d}:07"
    return [_system(f"{now}\n{RULES}\n{PROFILE}"), *state.history], tools()


def shuffled_tools(state: State) -> tuple[list[Message], list[Any]]:
    """The same tools in another order each turn."""
    listed = tools()
    shift = 1 + state.turn % (len(listed) - 1)
    return [_system(f"{RULES}\n{PROFILE}"), *state.history], listed[shift:] + listed[:shift]


def changing_profile(state: State) -> tuple[list[Message], list[Any]]:
    """What is known of the user stands before the rules, and is written anew each turn."""
    moods = ("glad", "tired", "hungry", "in a hurry", "curious", "cold")
    profile = f"{PROFILE} Just now she seems {moods[state.turn % len(moods)]}."
    return [_system(f"{profile}\n{RULES}"), *state.history], tools()


def sliding_window(state: State) -> tuple[list[Message], list[Any]]:
    """Only the newest messages."""
    start = max(0, len(state.history) - _WINDOW - 1)
    return [_system(f"{RULES}\n{PROFILE}"), *state.history[start:]], tools()


def history_as_text(state: State) -> tuple[list[Message], list[Any]]:
    """The whole history in one user message."""
    lines = [f"{message['role']}: {message['content']}" for message in state.history[:-1]]
    text = "\n".join(["So far:", *lines, f"Now: {state.history[-1]['content']}"])
    return [_system(f"{RULES}\n{PROFILE}"), {"role": "user", "content": text}], tools()


LAYOUTS: dict[str, Layout] = {
    "correct": correct,
    "timestamp in the system message": timestamp,
    "tools shuffled": shuffled_tools,
    "profile changes": changing_profile,
    "sliding window": sliding_window,
    "history as text": history_as_text,
}


def run_layout(base_url: str, layout: Layout, *, turns: int, salt: str, max_tokens: int = 24) -> Result:
    """`turns` calls of one conversation. salt: keeps layouts from helping each other."""
    history: list[Message] = []
    result = Result()
    with httpx.Client(timeout=300) as client:
        for turn in range(turns):
            history.append({"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]})
            messages, schemas = layout(State(turn, history))
            body = {
                "messages": messages,
                "tools": schemas,
                "tool_choice": "none",
                "max_tokens": max_tokens,
                "temperature": 0.8,
                "seed": turn,
                "cache_salt": salt,
                "deeproot": {"explain": True},
            }
            answer = client.post(f"{base_url}/chat/completions", json=body).raise_for_status().json()
            history.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            if turn:  # the first call of a conversation can hit nothing
                _account(result, answer["deeproot"]["explanations"][0])
    return result


def _account(result: Result, explanation: Any) -> None:
    result.prompt += explanation["prompt_tokens"]
    result.cached += explanation["matched_tokens"]
    result.ceiling += explanation["ceiling_tokens"]
    for miss in explanation["misses"]:
        result.misses[miss["cause"]] += miss["tokens"]


def table(results: dict[str, Result]) -> str:
    """The results as a Markdown table."""
    rows = []
    for name, result in results.items():
        causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in result.misses.most_common())
        rows.append((name, f"{result.prompt:,}", f"{result.cached:,}", f"{result.hit_rate:.1%}", causes))
    return text_table(("layout", "prompt tokens", "cached", "hit rate", "computed, by cause"), rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hit rates and causes of loss of six layouts")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    salt = f"{random.getrandbits(64):x}"
    results = {
        name: run_layout(
            args.base_url, layout, turns=args.turns, salt=f"{salt} {name}", max_tokens=args.max_tokens
        )
        for name, layout in LAYOUTS.items()
    }
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
