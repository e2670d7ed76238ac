"""Where a live replay's asks come from: the same workloads and files that the cache models take."""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from deeproot.bench.cachesim.call import Call
from deeproot.bench.cachesim.conversations import GAP_S, Renderer
from deeproot.bench.cachesim.own_tree import OwnTree
from deeproot.bench.cachesim.replaying import OWN_PAGE, replay, room_for_all
from deeproot.bench.cachesim.workloads import (
    BETWEEN_SESSIONS_S,
    CONVERSATIONS,
    Messages,
    named_workload,
    read_workload,
)
from deeproot.bench.live.asks import Ask, asks_of_calls, asks_of_conversation, plain_messages
from deeproot.bench.recorded import airline_documents
from deeproot.runtime.context.request_log import LoggedRequest, read_requests


def read_asks(args: argparse.Namespace) -> list[Ask]:
    """What the flags name, in the order of their times. Raises ValueError naming the flag, or OSError."""
    asks = _from_file(args) if args.file is not None else _named(args)
    if args.turns is not None:
        longest: dict[str, int] = {}
        for ask in asks:
            longest[ask.session] = max(longest.get(ask.session, 0), ask.turn)
        asks = [ask for ask in asks if longest[ask.session] >= args.turns >= ask.turn]
        if not asks:
            raise ValueError(f"--turns {args.turns}: the longest session has {max(longest.values())}")
    names = list(dict.fromkeys(ask.session for ask in asks))[: args.sessions]
    if args.workload != "mooncake" or args.file is not None:
        asks = [ask for ask in asks if ask.session in names]
    return sorted(asks, key=lambda ask: ask.time_s)


def _named(args: argparse.Namespace) -> list[Ask]:
    if args.workload == "airline":
        # Those that are too short for --turns are passed over, so that all are looked at.
        documents = airline_documents() if args.turns is not None else airline_documents(args.sessions)
        return _conversations([d["messages"] for d in documents], [str(d["id"]) for d in documents], args)
    calls = named_workload(args.workload, Renderer(), args.seed, args.sessions)
    return asks_of_calls(calls, max_tokens=args.max_tokens, max_prompt=args.max_prompt_tokens)


def _from_file(args: argparse.Namespace) -> list[Ask]:
    path: Path = args.file
    if args.form == "blocks":
        calls = read_workload(path, args.form, Renderer())
        return asks_of_calls(calls, max_tokens=args.max_tokens, max_prompt=args.max_prompt_tokens)
    text = path.read_text(encoding="utf-8")
    try:
        if args.form == "requests":
            return _requests(read_requests(text.splitlines()), args.max_tokens)
        found = CONVERSATIONS[args.form](text)
        asks = _conversations(found, [f"run {i}" for i in range(len(found))], args)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not asks:
        raise ValueError(f"{path}: holds no call of a model; is it of the form {args.form!r}?")
    return asks


def _conversations(
    conversations: Sequence[Messages], names: Sequence[str], args: argparse.Namespace
) -> list[Ask]:
    made = []
    for i, (messages, name) in enumerate(zip(conversations, names, strict=True)):
        made += asks_of_conversation(
            messages, name, start_s=i * BETWEEN_SESSIONS_S, gap_s=GAP_S, max_tokens=args.max_tokens
        )
    return made


def _requests(logged: Sequence[LoggedRequest], max_tokens: int) -> list[Ask]:
    turns: dict[str, int] = {}
    made = []
    for i, request in enumerate(logged):
        session = request.session or ""
        turns[session] = turns.get(session, 0) + 1
        messages = tuple(plain_messages(request.messages))
        made.append(Ask(session, turns[session], i * GAP_S, max_tokens, messages=messages))
    return made


def infinite_share(asks: Sequence[Ask], renderer: Renderer) -> float:
    """Cached share of the prompts in a cache that forgets nothing, by our tree; answers, which differ, are not counted."""
    calls = [_prompt_of(ask, renderer) for ask in asks]
    tree = OwnTree(max(1, room_for_all(calls) // OWN_PAGE), OWN_PAGE)
    return replay(calls, tree).hit_rate


def _prompt_of(ask: Ask, renderer: Renderer) -> Call:
    if not ask.messages:
        return Call(ask.session, ask.time_s, np.array(ask.prompt, dtype=np.int32))
    logged = LoggedRequest(0, "", ask.session, ask.messages, (), None, None)
    return renderer.request(logged, ask.turn)
