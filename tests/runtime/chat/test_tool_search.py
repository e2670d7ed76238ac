"""Searching for deferred tools, and remembering what was found."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeproot.runtime.chat.errors import TemplateError
from deeproot.runtime.chat.reply_events import ParsedReply, ToolCall
from deeproot.runtime.chat.search_memory import Searches, SearchMemory, scope_of
from deeproot.runtime.chat.tool_search import MAX_FOUND, NAME, ToolShelf, query_in, shelf_of

Tool = dict[str, Any]


def tool(name: str, description: str = "", *, deferred: bool = True, **parameters: str) -> Tool:
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    function = {
        "name": name,
        "description": description,
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function, "defer_loading": deferred}


TOOLS = [
    tool("read_file", "Reads a file.", deferred=False),
    tool("get_weather", "Weather of a city today.", city="which city"),
    tool("sendMail", "Sends a message.", to="address of the receiver"),
    tool("list_issues", "Lists issues of a repository.", repo="owner/name"),
    tool("book_flight", "Books a flight between two airports.", departure="city or airport"),
]


def shelf(tools: list[Tool]) -> ToolShelf:
    found = shelf_of(tools)
    assert found is not None
    return found


def names(found: list[Any]) -> list[str]:
    return [item["function"]["name"] for item in found]


def test_what_is_shown() -> None:
    assert shelf_of([tool("a", deferred=False), {"type": "function", "function": {"name": "b"}}]) is None
    found = shelf(TOOLS)
    assert names([*found.shown]) == ["read_file", NAME]
    assert names([*found.deferred]) == ["get_weather", "sendMail", "list_issues", "book_flight"]
    assert not any("defer_loading" in item for item in (*found.shown, *found.deferred))
    with pytest.raises(TemplateError, match=r"tools\[1\]\.function\.name: tool_search is built in"):
        shelf_of([tool("a"), tool(NAME, deferred=False)])


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("weather", ["get_weather"]),
        ("send an email message", ["sendMail"]),
        ("repository issue", ["list_issues"]),
        ("city", ["get_weather", "book_flight"]),
        ("FLIGHTS", ["book_flight"]),
        ("receiver", ["sendMail"]),
        ("nothing of the sort", ["sendMail"]),  # "of" and "the" are words like any other
        ("zebra", []),
        ("", []),
    ],
)
def test_what_is_found(query: str, best: list[str]) -> None:
    assert names(shelf(TOOLS).search(query))[: len(best)] == best
    assert bool(names(shelf(TOOLS).search(query))) == bool(best)


words = st.lists(st.sampled_from(["mail", "file", "city", "flight", "issue", "a1"]), min_size=1, max_size=6)


@given(texts=st.lists(words, min_size=1, max_size=9), query=words)
def test_scores_are_bm25(texts: list[list[str]], query: list[str]) -> None:
    """Against the formula written out, with k1 = 1.5 and b = 0.75."""
    tools = [tool(f"x{i}", " ".join(text)) for i, text in enumerate(texts)]
    documents = [[*["x", str(i)] * 2, *_split(text)] for i, text in enumerate(texts)]
    mean = sum(map(len, documents)) / len(documents)

    def score(document: list[str]) -> float:
        total = 0.0
        for term in set(_split(query)):
            df = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
            tf = document.count(term)
            total += idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * len(document) / mean))
        return total

    scores = [score(document) for document in documents]
    order = sorted((i for i in range(len(tools)) if scores[i] > 0), key=lambda i: (-round(scores[i], 9), i))
    found = [int(name[1:]) for name in names(shelf(tools).search(" ".join(query)))]
    assert len(found) == min(MAX_FOUND, len(order))
    assert [round(scores[i], 9) for i in found] == [round(scores[i], 9) for i in order[:MAX_FOUND]]


def _split(text: list[str]) -> list[str]:
    return [part for word in text for part in (["a", "1"] if word == "a1" else [word])]


@pytest.mark.parametrize("arguments", ["", "[]", "{}", '{"query": 3}', "no", '{"query": null}'])
def test_a_search_without_a_query_finds_nothing(arguments: str) -> None:
    assert query_in(arguments) == ""


USER = {"role": "user", "content": "Weather?"}
CALLS = {
    "role": "assistant",
    "content": "Let me see. Paris, then.",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
}


def searched() -> Searches:
    reply = ParsedReply("Let me see. ", (ToolCall("s1", NAME, '{"query": "weather"}'),), False)
    return Searches().followed_by(shelf(TOOLS), reply)


def test_searches_are_put_back_where_they_were() -> None:
    memory, scope = SearchMemory(), scope_of(b"", TOOLS)
    memory.put(scope, [USER], searched())
    result = {"role": "tool", "tool_call_id": "1", "content": "fine"}
    arranged = memory.arranged(scope, [USER, CALLS, result], shelf(TOOLS))
    assert [message["role"] for message in arranged] == ["user", "assistant", "tool", "assistant", "tool"]
    assert arranged[1]["tool_calls"][0]["function"]["arguments"] == '{"query": "weather"}'
    assert json.loads(arranged[2]["content"].splitlines()[1])["name"] == "get_weather"
    assert arranged[3] == {**CALLS, "content": "Paris, then."}
    # of another tenant, with other tools, after another message: not remembered
    for other in (scope_of(b"x", TOOLS), scope_of(b"", TOOLS[:2])):
        assert memory.arranged(other, [USER, CALLS], shelf(TOOLS))[1] != arranged[1]


def test_what_is_forgotten_is_found_by_name_each_time_alike() -> None:
    memory, scope = SearchMemory(), scope_of(b"", TOOLS)
    talk = [USER, CALLS, USER, CALLS, USER]
    arranged = memory.arranged(scope, talk, shelf(TOOLS))
    assert [message["role"] for message in arranged] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert "get_weather" in arranged[2]["content"]
    assert arranged == SearchMemory().arranged(scope, talk, shelf(TOOLS))
    assert memory.arranged(scope, talk[:2], shelf(TOOLS)) == arranged[:4]


def test_the_memory_keeps_its_bound() -> None:
    memory = SearchMemory(max_kept=2)
    for i in range(3):
        memory.put(b"", [{"role": "user", "content": str(i)}], searched())
    kept = [
        len(memory.arranged(b"", [{"role": "user", "content": str(i)}, {"role": "assistant"}], shelf(TOOLS)))
        > 2
        for i in range(3)
    ]
    assert kept == [False, True, True]
