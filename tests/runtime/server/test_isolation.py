"""What one tenant is told does not depend on what another has sent: on an idle server with room."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.rig import make_scheduler, request, run

from deeproot.runtime.options import EngineOptions, ServerOptions
from deeproot.scheduler.answering import answer
from deeproot.scheduler.messages import Boundary, Hints, Usage
from deeproot.scheduler.questions import HoldQuestion, ProbeAnswer, ProbeQuestion
from deeproot.scheduler.scheduler import Scheduler

from .harness import RunningServer, running_server

Sent = list[tuple[list[int], bool]]
"""Prompts, and whether they are leased."""
prompts = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.booleans()), max_size=6)


def send(scheduler: Scheduler, tenant: bytes, sent: Sent) -> list[tuple[Usage | None, tuple[int, ...]]]:
    """What the tenant learns: the accounts of each request, and a probe of it before."""
    told = []
    for i, (ids, leased) in enumerate(sent):
        rid = f"{tenant.decode()} {i}"
        question = ProbeQuestion((np.asarray(ids, dtype=np.int32).tobytes(),), tenant)
        probed = answer(scheduler, question)
        assert isinstance(probed, ProbeAnswer)
        hints = Hints(tenant, b"s")
        scheduler.add(msgspec.structs.replace(request(rid, ids, 2), namespace=tenant, hints=hints))
        told.append((run(scheduler)[rid][-1].usage, probed.cached))
        if leased:
            answer(scheduler, HoldQuestion(rid, (Boundary(10**6, 3, 1000.0),)))
    return told


@given(a=prompts, b=prompts)
@settings(max_examples=60, deadline=None)
def test_accounts_and_probes_of_b_do_not_depend_on_a(a: Sent, b: Sent) -> None:
    alone = make_scheduler(page_size=4, num_pages=256)
    shared = make_scheduler(page_size=4, num_pages=256)
    half = len(a) // 2
    send(shared, b"a", a[:half])
    told = send(shared, b"b", b[: len(b) // 2])
    scheduler = shared
    for i, (ids, leased) in enumerate(a[half:]):
        send(scheduler, f"a{i}".encode(), [(ids, leased)])
    assert told == send(alone, b"b", b[: len(b) // 2])
    assert send(shared, b"c", b) == send(alone, b"c", b)


@pytest.fixture(scope="module")
def guarded(tiny_options: EngineOptions) -> Iterator[RunningServer]:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("key-a", "key-b"))) as running:
        yield running


def told_to_b(server: RunningServer, salt: str) -> list[Any]:
    """All that b is told of a conversation under a new salt."""
    headers, told = {"Authorization": "Bearer key-b"}, []
    messages = [{"role": "system", "content": "A secret plan. " * 8}, {"role": "user", "content": "Go."}]
    for _ in range(2):
        source = {"prompts": [{"messages": messages}], "cache_salt": salt}
        probed = httpx.post(f"{server.url}/v1/cache/probe", json=source, headers=headers, timeout=60).json()
        body = {
            "messages": messages,
            "max_tokens": 4,
            "seed": 1,
            "cache_salt": salt,
            "deeproot": {"explain": True},
        }
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60).json()
        (explanation,) = reply["deeproot"]["explanations"]
        named = {key: value for key, value in explanation.items() if key not in ("id", "created")}
        if named["divergence"] is not None:
            named["divergence"].pop("earlier")
        told += [probed["prompts"], reply["usage"], named]
        messages = [*messages, {"role": "user", "content": "And then?"}]
    return told


def test_nothing_that_b_is_told_depends_on_a(guarded: RunningServer) -> None:
    before = told_to_b(guarded, "first")
    for turn in range(3):
        messages = [{"role": "system", "content": "A secret plan. " * 8}, {"role": "user", "content": "Go."}]
        own = {"session_id": "s", "lease_s": 100, "explain": True}
        body = {"messages": messages, "max_tokens": 4 + turn, "deeproot": own}
        headers = {"Authorization": "Bearer key-a"}
        reply = httpx.post(f"{guarded.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert reply.status_code == 200
    assert told_to_b(guarded, "second") == before
    guarded.wait_idle()
