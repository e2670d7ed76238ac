"""Agents that call tools and pause for them, and single prompts, as chats: the same from the same seed.

Every reply of an agent is a call of a named tool with arguments that its schema leaves no choice in, so that a conversation
is the same whatever the model is and whatever was cached.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.bench.ttft import WORDS

Message = dict[str, Any]

_PAUSES_S = {"read_file": 0.5, "run_tests": 4.0, "build": 12.0}
"""Tools, and how long each takes: the median."""
_SPREAD = 0.4
"""Standard deviation of the logarithm of pauses and lengths."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes in words, which are about a token each in usual vocabularies."""

    sessions: int = 8
    turns: int = 12
    root: int = 350
    task: int = 120
    output: int = 170
    most: int = 1800
    """Above this many words of results the older half of a conversation is left out."""
    cold: int = 120
    """Single prompts."""
    cold_words: int = 250
    cold_every_s: float = 0.8
    pace: float = 1.0
    """Factor on all times."""


@dataclass(frozen=True, slots=True)
class Step:
    """What an agent's next turn is: the tool that it calls, how long that takes, and what it returns."""

    tool: str
    pause_s: float
    result: str


class Session:
    """One agent's conversation, which grows by what is answered."""

    def __init__(self, shape: Shape, seed: int, number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        root = random.Random(seed)
        self.name = f"agent-{number}"
        self._most = shape.most
        self._system = {
            "role": "system",
            "content": [
                {
                    "type": "text",
                    "text": "You work on a repository with tools. " + words(root, shape.root),
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        }
        self._task = f"Task {number}: " + words(rng, shape.task)
        self._pairs: list[tuple[Message, Message]] = []
        self._left_out = 0
        self.steps = [_step(shape, rng) for _ in range(shape.turns)]

    def messages(self) -> list[Message]:
        """The next request's."""
        note = f"\n({self._left_out} earlier steps are left out.)" if self._left_out else ""
        first = {"role": "user", "content": self._task + note}
        return [self._system, first, *(message for pair in self._pairs for message in pair)]

    def answered(self, calls: Sequence[Mapping[str, Any]], step: Step) -> None:
        """Take the reply's calls, and what the tool returned."""
        said = {"role": "assistant", "content": None, "tool_calls": list(calls)}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": step.result}
        self._pairs.append((said, result))
        if sum(len(result["content"].split()) for _, result in self._pairs) > self._most:
            gone = len(self._pairs) // 2
            self._left_out += gone
            del self._pairs[:gone]


def tools() -> list[dict[str, Any]]:
    """In OpenAI's form."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name,
                "parameters": {
                    "type": "object",
                    "properties": {"target": {"enum": ["src"]}},
                    "required": ["target"],
                    "additionalProperties": False,
                },
            },
        }
        for name in _PAUSES_S
    ]


def made_call(name: str) -> dict[str, Any]:
    """What the model can only say."""
    function = {"name": name, "arguments": json.dumps({"target": "src"})}
    return {"id": "made", "type": "function", "function": function}


def singles(shape: Shape, seed: int) -> Iterator[tuple[float, list[Message]]]:
    """Time in seconds and messages of each single prompt; nothing of one is in another."""
    rng, now = random.Random(f"{seed} cold"), 0.0
    for i in range(shape.cold):
        now += rng.expovariate(1 / shape.cold_every_s) * shape.pace
        length = _spread(rng, shape.cold_words)
        yield (
            now,
            [
                {"role": "system", "content": f"{i}: " + words(rng, 20)},
                {"role": "user", "content": words(rng, round(min(length, 4 * shape.cold_words)))},
            ],
        )


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _step(shape: Shape, rng: random.Random) -> Step:
    tool = rng.choice(list(_PAUSES_S))
    length = min(_spread(rng, shape.output), 3 * shape.output)
    return Step(tool, _spread(rng, _PAUSES_S[tool]) * shape.pace, words(rng, round(length)))


def _spread(rng: random.Random, median: float) -> float:
    return median * rng.lognormvariate(0.0, _SPREAD)
