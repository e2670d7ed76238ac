"""What a conversation with tool calls computes in each turn, through plain chat calls of the OpenAI SDK.

    python -m deeproot.bench.continuation --base-url http://127.0.0.1:8000/v1

Works against any OpenAI-compatible server that reports `cached_tokens`. The model's own replies go back, with
`--rewrite` as many clients write them: white space at the end gone, JSON of tool calls written anew with its keys in
order. A turn is one call of the API. Ideally it computes what the client has added since the last reply, and the one
token that was sampled last.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

from openai import OpenAI

from deeproot.bench.report.text import text_table

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city now.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CITIES = ["Paris", "Lima", "Tokyo", "Nairobi", "Quito", "Hanoi", "Bergen", "Accra", "Perth", "Porto"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the API."""

    prompt: int
    cached: int
    output: int
    new: int
    """Tokens of the prompt behind the last prompt and its reply."""
    has_calls: bool

    @property
    def computed(self) -> int:
        return self.prompt - self.cached

    @property
    def excess(self) -> int:
        """Tokens computed beyond the new ones."""
        return self.computed - self.new


def examples() -> list[Any]:
    """Worked examples: a small model does not call tools because it is told to, but it continues a pattern."""
    messages: list[Any] = []
    for i, (city, sky, celsius) in enumerate(
        [
            ("Rome", "cloudy", 17),
            ("Oslo", "rainy", 9),
            ("Cairo", "clear", 31),
            ("Delhi", "hazy", 28),
            ("Bern", "foggy", 4),
            ("Lyon", "sunny", 19),
            ("Kyoto", "windy", 14),
            ("Turin", "cloudy", 12),
        ]
    ):
        function = {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "C"})}
        call = {"id": f"example-{i}", "type": "function", "function": function}
        result = {"city": city, "sky": sky, "celsius": celsius}
        messages += [
            {"role": "user", "content": f"What is the weather in {city}?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)},
            {"role": "assistant", "content": f"In {city} it is {sky} and {celsius} degrees."},
        ]
    return messages


def rewritten(message: dict[str, Any]) -> dict[str, Any]:
    """A reply as a client stores it that parses what it gets."""
    result = dict(message)
    if isinstance(result.get("content"), str):
        result["content"] = result["content"].rstrip()
    if result.get("tool_calls"):
        result["tool_calls"] = [_rewritten_call(call) for call in result["tool_calls"]]
    return result


def _rewritten_call(call: dict[str, Any]) -> dict[str, Any]:
    values = json.loads(call["function"]["arguments"])
    arguments = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return {**call, "function": {**call["function"], "arguments": arguments}}


def converse(client: OpenAI, model: str, num_turns: int, *, rewrite: bool, seed: int = 0) -> list[Turn]:
    """`num_turns` calls of the API in one conversation, at temperature 0.8."""
    messages, question = examples(), 0
    turns: list[Turn] = []
    messages.append({"role": "user", "content": f"What is the weather in {CITIES[0]}?"})
    while len(turns) < num_turns:
        reply = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            temperature=0.8,
            max_tokens=48,
            seed=seed + len(turns),
        )
        message = reply.choices[0].message.to_dict()
        calls = [call for call in reply.choices[0].message.tool_calls or [] if call.type == "function"]
        turns.append(_turn(reply.usage, turns[-1] if turns else None, has_calls=bool(calls)))
        messages.append(rewritten(message) if rewrite else message)
        for call in calls:
            result = json.dumps(
                {"city": CITIES[question % len(CITIES)], "sky": "sunny", "celsius": 10 + question}
            )
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not calls:
            question += 1
            city = CITIES[question % len(CITIES)]
            messages.append({"role": "user", "content": f"What is the weather in {city}?"})
    return turns


def _turn(usage: Any, last: Turn | None, *, has_calls: bool) -> Turn:
    details = usage.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details is not None else 0
    before = 0 if last is None else last.prompt + last.output
    return Turn(usage.prompt_tokens, cached, usage.completion_tokens, usage.prompt_tokens - before, has_calls)


def table(turns: list[Turn]) -> str:
    """The turns as a Markdown table."""
    rows = [
        (
            *map(str, (i, turn.prompt, turn.cached, turn.computed, turn.new, turn.excess)),
            "calls" if turn.has_calls else "text",
        )
        for i, turn in enumerate(turns, 1)
    ]
    made = text_table(("turn", "prompt", "cached", "computed", "new", "beyond", "reply"), rows)
    later = turns[1:]
    computed, new = sum(turn.computed for turn in later), sum(turn.new for turn in later)
    worst = max((turn.excess for turn in later), default=0)
    return (
        f"{made}\n\nFrom turn 2 on: {computed} tokens computed, {new} of them new; at most {worst} beyond the new ones"
        " in a turn."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokens computed in each turn of a conversation")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rewrite", action="store_true", help="send replies back as parsing clients do")
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key=args.api_key)
    model = client.models.list().data[0].id
    print(table(converse(client, model, args.turns, rewrite=args.rewrite, seed=args.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
