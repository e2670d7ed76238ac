"""Deferred tools: their schemas stay out of the prompt until the model has searched for them.

A tool with `defer_loading: true` is not shown; in its place the model gets the built-in `tool_search`. What a search
finds (BM25 over names, descriptions and parameters) comes as the search's result, so at the tail: nothing that is
cached changes, however many tools there are.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.reply_events import ParsedReply

NAME = "tool_search"
MAX_FOUND = 5

Tool = Mapping[str, Any]
"""In OpenAI's form."""

SEARCH_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Finds more tools by what they do. Tools that are found can be called from then on.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "a few words on what the tool should do"}
            },
            "required": ["query"],
        },
    },
}

_WORD = re.compile(r"[a-z]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_K1, _B = 1.5, 0.75


@dataclass(frozen=True, slots=True)
class ToolShelf:
    """A request's tools, of which some are deferred."""

    shown: tuple[Tool, ...]
    """What the prompt lists: the tools that are not deferred, and the search."""
    deferred: tuple[Tool, ...]

    def search(self, query: str) -> list[Tool]:
        """The deferred tools that fit best, best first; at most `MAX_FOUND`."""
        terms = set(_words(query))
        documents = [Counter(_words(_text_of(tool))) for tool in self.deferred]
        mean = sum(document.total() for document in documents) / max(1, len(documents))
        rarity = {term: _rarity(sum(term in d for d in documents), len(documents)) for term in terms}

        def score(document: Counter[str]) -> float:
            size = _K1 * (1 - _B + _B * document.total() / mean)
            return sum(rarity[t] * document[t] * (_K1 + 1) / (document[t] + size) for t in terms)

        scores = [score(document) if document else 0.0 for document in documents]
        best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [self.deferred[i] for i in best[:MAX_FOUND] if scores[i] > 0]


def shelf_of(tools: Sequence[Tool], *, name_them: bool = False) -> ToolShelf | None:
    """The tools with `defer_loading` apart from the others; None if there are none. `name_them`: the search's description
    says which tools it finds.

    TemplateError if a tool of the request has the search's name.
    """
    deferred = tuple(_bare(tool) for tool in tools if tool.get("defer_loading"))
    if not deferred:
        return None
    for i, tool in enumerate(tools):
        if tool["function"]["name"] == NAME:
            raise TemplateError(
                f"{NAME} is built in where tools are deferred: rename yours",
                field=f"tools[{i}].function.name",
            )
    shown = tuple(_bare(tool) for tool in tools if not tool.get("defer_loading"))
    return ToolShelf((*shown, _naming(deferred) if name_them else SEARCH_TOOL), deferred)


def exchange(reply: ParsedReply, found: Mapping[str, Sequence[Tool]]) -> list[dict[str, Any]]:
    """A reply that searches and the results, as messages; `found` by the calls' ids. Same input, same bytes."""
    asked: dict[str, Any] = {
        "role": "assistant",
        "content": reply.content or None,
        "tool_calls": [call.as_message() for call in reply.calls],
    }
    if reply.reasoning:
        asked["reasoning_content"] = reply.reasoning
    results = [
        {"role": "tool", "tool_call_id": call.call_id, "content": result_text(found[call.call_id])}
        for call in reply.calls
    ]
    return [asked, *results]


def query_in(arguments: str) -> str:
    """What a call of the search asks for; empty if it does not say."""
    try:
        query = json.loads(arguments).get("query", "")
    except (ValueError, AttributeError):
        return ""
    return query if isinstance(query, str) else ""


def result_text(tools: Sequence[Tool]) -> str:
    """What a search answers that found these."""
    lines = [json.dumps(tool["function"], ensure_ascii=False, sort_keys=True) for tool in tools]
    return (
        "\n".join(["These tools can be called now:", *lines]) if lines else "No tool fits. Try other words."
    )


def _naming(deferred: Sequence[Tool]) -> Tool:
    names = ", ".join(sorted(tool["function"]["name"] for tool in deferred))
    function = SEARCH_TOOL["function"]
    described = {**function, "description": f"{function['description']} There are: {names}."}
    return {**SEARCH_TOOL, "function": described}


def _bare(tool: Tool) -> Tool:
    return {key: value for key, value in tool.items() if key != "defer_loading"}


def _text_of(tool: Tool) -> str:
    function = tool["function"]
    properties = (function.get("parameters") or {}).get("properties")
    parts = [function["name"], function["name"], function.get("description") or ""]
    for name, schema in properties.items() if isinstance(properties, Mapping) else ():
        parts += [str(name), str(schema.get("description") or "") if isinstance(schema, Mapping) else ""]
    return " ".join(parts)


def _words(text: str) -> list[str]:
    """Words in lower case, without a plural's s; names in camel or snake case are several."""
    found = _WORD.findall(_CAMEL.sub(" ", text).lower())
    return [word.removesuffix("s") if len(word) > 3 else word for word in found]


def _rarity(num_with: int, num_all: int) -> float:
    return math.log(1 + (num_all - num_with + 0.5) / (num_with + 0.5))
