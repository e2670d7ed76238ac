"""Where a replay's calls come from: by name, or from a file in a named form."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import Renderer, read_documents, sharegpt, trajectory
from deeproot.bench.cachesim.made_runs import AgentShape, made_runs
from deeproot.bench.cachesim.mooncake import calls_of_blocks, conversation, read_trace
from deeproot.bench.recorded import airline_documents
from deeproot.runtime.context.openai_messages import LogImportError
from deeproot.runtime.context.request_log import read_requests

Messages = Sequence[Mapping[str, Any]]
BETWEEN_SESSIONS_S = 60.0
"""Seconds from one recorded session's start to the next one's."""


def named_workload(name: str, renderer: Renderer, seed: int, most: int) -> list[Call]:
    """`airline`, `agents` (made) or `mooncake`; `most`: sessions, or requests of mooncake.

    Raises ValueError for another name.
    """
    if name == "airline":
        documents = airline_documents(most)
        return _sessions([d["messages"] for d in documents], [str(d["id"]) for d in documents], renderer)
    if name == "agents":
        return made_runs(AgentShape(sessions=most), seed)
    if name == "mooncake":
        return calls_of_blocks(conversation(most))
    raise ValueError(f"workload is {name!r}; give airline, agents or mooncake")


def read_workload(path: Path, form: str, renderer: Renderer) -> list[Call]:
    """Calls of a file. form: one of `FORMS`. Raises ValueError naming what is wrong, or OSError."""
    text = path.read_text(encoding="utf-8")
    if form not in FORMS:
        raise ValueError(f"form is {form!r}; give one of {', '.join(FORMS)}")
    try:
        calls = FORMS[form](text, renderer)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not calls:
        raise ValueError(f"{path}: holds no call of a model; is it of the form {form!r}?")
    return calls


def _blocks(text: str, renderer: Renderer) -> list[Call]:
    return calls_of_blocks(read_trace(text.splitlines()))


def _requests(text: str, renderer: Renderer) -> list[Call]:
    return [renderer.request(logged, i) for i, logged in enumerate(read_requests(text.splitlines()))]


def runs_of(text: str) -> list[Messages]:
    """Whole conversations in OpenAI's form. Raises `LogImportError` naming what is wrong."""
    found: list[Messages] = []
    for i, document in enumerate(read_documents([text])):
        messages = document.get("messages") if isinstance(document, Mapping) else None
        if not isinstance(messages, list):
            raise LogImportError(f"[{i}].messages is missing or no list; give conversations in OpenAI's form")
        found.append(messages)
    return found


def sharegpt_of(text: str) -> list[Messages]:
    """The same of ShareGPT's form."""
    return [sharegpt(document, f"[{i}]") for i, document in enumerate(read_documents([text]))]


def swe_agent_of(text: str) -> list[Messages]:
    """The same of one SWE-agent trajectory."""
    document = json.loads(text)
    if not isinstance(document, Mapping):
        raise LogImportError(f"is {type(document).__name__}; give a SWE-agent .traj document")
    return [trajectory(document)]


def _conversations(of: Callable[[str], list[Messages]]) -> Callable[[str, Renderer], list[Call]]:
    def read(text: str, renderer: Renderer) -> list[Call]:
        found = of(text)
        return _sessions(found, [f"run {i}" for i in range(len(found))], renderer)

    return read


CONVERSATIONS: Mapping[str, Callable[[str], list[Messages]]] = {
    "runs": runs_of,
    "sharegpt": sharegpt_of,
    "swe-agent": swe_agent_of,
}
"""Forms of files that hold whole conversations, and what reads them."""
FORMS: Mapping[str, Callable[[str, Renderer], list[Call]]] = {
    "requests": _requests,
    **{form: _conversations(of) for form, of in CONVERSATIONS.items()},
    "blocks": _blocks,
}
"""OpenAI chat completion requests, one a line; whole conversations; ShareGPT; a SWE-agent trajectory; block ids."""


def _sessions(
    conversations: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str], renderer: Renderer
) -> list[Call]:
    """Calls of conversations that begin one after another and overlap, in the order of their times."""
    made = []
    for i, (messages, name) in enumerate(zip(conversations, names, strict=True)):
        made += renderer.conversation(messages, name, start_s=i * BETWEEN_SESSIONS_S)
    return sorted(made, key=lambda call: call.time_s)
