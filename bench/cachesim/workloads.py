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


def _runs(text: str, renderer: Renderer) -> list[Call]:
    documents = read_documents([text])
    found = []
    for i, document in enumerate(documents):
        messages = document.get("messages") if isinstance(document, Mapping) else None
        if not isinstance(messages, list):
            raise LogImportError(f"[{i}].messages is missing or no list; give conversations in OpenAI's form")
        found.append(messages)
    return _sessions(found, [f"run {i}" for i in range(len(found))], renderer)


def _sharegpt(text: str, renderer: Renderer) -> list[Call]:
    found = [sharegpt(document, f"[{i}]") for i, document in enumerate(read_documents([text]))]
    return _sessions(found, [f"conversation {i}" for i in range(len(found))], renderer)


def _swe_agent(text: str, renderer: Renderer) -> list[Call]:
    document = json.loads(text)
    if not isinstance(document, Mapping):
        raise LogImportError(f"is {type(document).__name__}; give a SWE-agent .traj document")
    return renderer.conversation(trajectory(document), "trajectory")


FORMS: Mapping[str, Callable[[str, Renderer], list[Call]]] = {
    "requests": _requests,
    "runs": _runs,
    "sharegpt": _sharegpt,
    "swe-agent": _swe_agent,
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
