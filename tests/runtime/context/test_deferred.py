"""Deferred tools: names in the root, schemas once at the tail, and the root never moves."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from deeproot.runtime.chat.tool_search import SEARCH_TOOL, shelf_of
from deeproot.runtime.context import record
from deeproot.runtime.context.compaction.compactor import Compactor
from deeproot.runtime.context.compaction.strategies import strategies
from deeproot.runtime.context.deferred import answer, read_deferred
from deeproot.runtime.context.event_log import EventLog, EventLogError
from deeproot.runtime.context.template import ChatTemplate
from deeproot.runtime.context.three_zones import ThreeZones
from deeproot.runtime.context.tokenise import SegmentTokenizer
from deeproot.runtime.context.tokenizer import TokenizersAdapter
from deeproot.runtime.context.working_set import WorkingSet

from .agent_turns import TOOLS, call, extends, linted, text_of

NAMES = {
    "get_weather": "Weather of a city: temperature, rain.",
    "send_mail": "Sends a mail to an address.",
    "read_calendar": "Appointments of a day in the calendar.",
    "book_room": "Books a meeting room for an hour.",
    "translate_text": "Translates a text into a language.",
}
LATER = [
    {
        "type": "function",
        "defer_loading": True,
        "function": {
            "name": name,
            "description": words,
            "parameters": {"type": "object", "properties": {f"{name}_argument": {"type": "string"}}},
        },
    }
    for name, words in NAMES.items()
]


def begin(log: EventLog) -> None:
    record.policy(log, "You are careful.")
    record.tools(log, [*TOOLS, *LATER])
    record.user(log, "Is it raining in Rome?")


def search(log: EventLog, arguments: Any) -> int:
    function = {"name": "tool_search", "arguments": json.dumps(arguments)}
    call_id = f"c{len(log)}"
    record.assistant(log, "", tool_calls=[{"id": call_id, "type": "function", "function": function}])
    return answer(log, call_id, function)


@pytest.fixture
def working_set(tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate]) -> WorkingSet:
    return WorkingSet(
        policy=ThreeZones(9000), tokenizer=SegmentTokenizer(tok), template=make_template("qwen2.5-instruct")
    )


def test_the_root_has_names_and_the_search(log: EventLog, working_set: WorkingSet) -> None:
    begin(log)
    context = working_set.assemble(log)
    assert [tool["function"]["name"] for tool in context.tools] == [
        *sorted(tool["function"]["name"] for tool in TOOLS),
        "tool_search",
    ]
    described = context.tools[-1]["function"]["description"]
    assert all(name in described for name in NAMES)
    whole = json.dumps(context.request())
    assert "_argument" not in whole
    assert "defer_loading" not in whole
    # The tokens of the prompt have no more of them than the request.
    root = [s for s in context.segments if s.source.uri.startswith("instruction://")]
    assert sum(s.token_ids.size for s in root) < 3 * len(json.dumps(list(context.tools)))


def test_a_schema_comes_once_and_the_prefix_stays(log: EventLog, working_set: WorkingSet) -> None:
    begin(log)
    contexts = [working_set.assemble(log)]
    search(log, {"query": "weather rain"})
    for i in range(4):
        contexts.append(working_set.assemble(log))
        call(log, "get_weather", {"get_weather_argument": "Rome"}, f"rain {i}")
    search(log, {"query": "weather or calendar"})
    contexts.append(working_set.assemble(log))
    text = text_of(contexts[-1])
    assert text.count('"get_weather_argument": {') == 1
    assert text.count('"read_calendar_argument": {') == 1
    assert "get_weather can be called: its schema is in event 5." in text
    assert all(extends(a, b) for a, b in itertools.pairwise(contexts))
    assert linted(contexts).breaks == ()
    known = read_deferred(log)
    assert set(known.loaded) == {"get_weather", "read_calendar"}
    # As the server answers the same search.
    shelf = shelf_of([*TOOLS, *LATER])
    assert shelf is not None
    assert [t["function"]["name"] for t in shelf.search("weather rain")] == ["get_weather"]
    assert shelf.shown[-1] is SEARCH_TOOL


def test_schemas_survive_filters_previews_and_compaction(
    tok: TokenizersAdapter, make_template: Callable[[str], ChatTemplate], log: EventLog
) -> None:
    begin(log)
    search(log, {"query": "weather"})
    working_set = WorkingSet(
        policy=ThreeZones(4000),
        tokenizer=SegmentTokenizer(tok),
        template=make_template("qwen2.5-instruct"),
        result_tokens=50,
    )
    compactor = Compactor(working_set, budget=4000, strategy=strategies()["query_aware"])
    for i in range(24):
        asyncio.run(compactor.make_room(log, incoming=300))
        call(log, "bash", {"cmd": f"make {i}"}, f"output {i} " * 30)
    assert compactor.compactions(log)
    assert '"get_weather_argument"' in text_of(working_set.assemble(log))


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": 3}, [], "words"])
def test_a_search_without_words_says_what_to_give(log: EventLog, arguments: Any) -> None:
    begin(log)
    event = log.event(search(log, arguments))
    assert log.text(event) == "error: query is missing; give a few words on what the tool should do"
    assert event.exit_code == 1


def test_nothing_found_nothing_deferred_and_a_name_that_is_taken(log: EventLog) -> None:
    begin(log)
    assert log.text(log.event(search(log, {"query": "zzz"}))) == "No tool fits. Try other words."
    other = EventLog.memory()
    record.tools(other, TOOLS)
    assert other.text(other.event(search(other, {"query": "weather"}))) == "error: no tool is deferred"
    taken = {"type": "function", "function": {"name": "tool_search"}}
    with pytest.raises(EventLogError, match="tool_search is built in"):
        record.tools(other, [*LATER, taken])
