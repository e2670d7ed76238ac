"""An agent's tool loop through the OpenAI SDK: the model calls tools, we run them, it answers.

    python examples/tool_loop.py [http://127.0.0.1:8000/v1]

A model of 135M parameters does not call tools because it was told to, but it continues a pattern: the conversation
starts with a few worked examples. They are the same in every call, so that they are computed once.
"""

import json
import sys
from datetime import UTC, datetime
from typing import cast

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city now.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Name of the city"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time now, in UTC.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]
WEATHER, TIME = "What is the weather in {}?", "What time is it?"


def example(
    number: int, question: str, name: str, arguments: object, result: object, answer: str
) -> list[object]:
    """One question that was answered with the help of a tool."""
    call = {"name": name, "arguments": json.dumps(arguments)}
    rid = f"example-{number}"
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "tool_calls": [{"id": rid, "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": rid, "content": json.dumps(result)},
        {"role": "assistant", "content": answer},
    ]


def examples() -> list[ChatCompletionMessageParam]:
    messages: list[object] = []
    for i, (city, sky, celsius) in enumerate(
        [("Rome", "cloudy", 17), ("Oslo", "rainy", 9), ("Cairo", "clear", 31)]
    ):
        result = {"city": city, "sky": sky, "celsius": celsius}
        answer = f"In {city} it is {sky} and {celsius} degrees."
        messages += example(i, WEATHER.format(city), "get_weather", {"city": city}, result, answer)
    for i, utc in enumerate(["08:15", "09:40"]):
        messages += example(10 + i, TIME, "get_time", {}, {"utc": utc}, f"It is {utc} UTC.")
    return cast("list[ChatCompletionMessageParam]", messages)


def run_tool(name: str, arguments: str) -> str:
    """What a tool answers; a mistake of the model's is told to the model."""
    try:
        values = json.loads(arguments)
    except json.JSONDecodeError as error:
        return json.dumps({"error": f"arguments are not JSON: {error}"})
    if name == "get_weather":
        return json.dumps({"city": values.get("city"), "sky": "sunny", "celsius": 21})
    if name == "get_time":
        return json.dumps({"utc": datetime.now(UTC).strftime("%H:%M")})
    return json.dumps({"error": f"there is no tool {name!r}"})


def main() -> None:
    base_url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1"
    client = OpenAI(base_url=base_url, api_key="not-needed")
    model = client.models.list().data[0].id
    messages = examples()
    for question in (WEATHER.format("Paris"), TIME):
        print(f"user       {question}")
        messages.append({"role": "user", "content": question})
        for _ in range(3):  # a model that only ever calls tools must not loop for ever
            reply = client.chat.completions.create(
                model=model, messages=messages, tools=TOOLS, temperature=0, max_tokens=60
            )
            message, usage = reply.choices[0].message, reply.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            messages.append(cast("ChatCompletionMessageParam", message.to_dict()))
            account = (
                f"({usage.prompt_tokens_details.cached_tokens} of {usage.prompt_tokens} prompt tokens cached)"
            )
            for call in message.tool_calls or []:
                assert call.type == "function"
                result = run_tool(call.function.name, call.function.arguments)
                print(f"assistant  calls {call.function.name}({call.function.arguments})  {account}")
                print(f"tool       {result}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not message.tool_calls:
                print(f"assistant  {(message.content or '').strip()}  {account}")
                break


if __name__ == "__main__":
    main()
