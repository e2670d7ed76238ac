"""What one tenant is told does not depend on what another has sent: on an idle server with room."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.scheduler.rig import make_scheduler, request, run
from tests.scheduler.test_claims import HintedLoad

from deeproot.engine.eviction import EvictionClass
from deeproot.runtime.options import EngineOptions, ServerOptions, SetupError
from deeproot.runtime.server.declaring import read_shared_prefixes
from deeproot.runtime.server.shared_prefixes import SharedPrefixes
from deeproot.scheduler.answering import answer
from deeproot.scheduler.messages import Boundary, Hints, Usage
from deeproot.scheduler.questions import (
    HoldQuestion,
    LeaveQuestion,
    ProbeAnswer,
    ProbeQuestion,
    SessionAnswer,
    TreeAnswer,
    TreeQuestion,
)
from deeproot.scheduler.scheduler import Scheduler

from .harness import RunningServer, running_server

NONE_SHARED = SharedPrefixes()
Sent = list[tuple[list[int], bool]]
"""Prompts, and whether they are leased."""
prompts = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.booleans()), max_size=6)


def send(
    scheduler: Scheduler,
    tenant: bytes,
    sent: Sent,
    declared: SharedPrefixes = NONE_SHARED,
    session: bytes = b"s",
) -> list[tuple[Usage | None, tuple[int, ...]]]:
    """What the tenant learns: the accounts of each request, and a probe of it before."""
    told = []
    for i, (ids, leased) in enumerate(sent):
        rid = f"{tenant.decode()} {i}"
        raw = np.asarray(ids, dtype=np.int32).tobytes()
        shared = declared.num_shared(raw)
        question = ProbeQuestion((raw,), tenant, (shared,))
        probed = answer(scheduler, question)
        assert isinstance(probed, ProbeAnswer)
        hints = Hints(tenant, session)
        message = request(rid, ids, 2)
        scheduler.add(msgspec.structs.replace(message, namespace=tenant, shared=shared, hints=hints))
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


segments = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3)


def beginning(sent: Sent, declared: SharedPrefixes) -> Sent:
    """Every other prompt behind a declared segment."""
    starts = [one.tolist() for one in declared.segments]
    return [
        ((starts[i % len(starts)] + ids)[:40] if i % 2 else ids, leased)
        for i, (ids, leased) in enumerate(sent)
    ]


@given(a=prompts, b=prompts, segments=segments, warmed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_b_learns_of_a_only_whether_declared_segments_are_cached(
    a: Sent, b: Sent, segments: list[list[int]], warmed: bool
) -> None:
    """And not even that if they were computed at the start."""
    declared = SharedPrefixes([np.asarray(one, dtype=np.int32) for one in segments])
    alone = make_scheduler(page_size=4, num_pages=256)
    beside = make_scheduler(page_size=4, num_pages=256)
    if warmed:
        for scheduler in (alone, beside):
            send(scheduler, b"operator", [(one, False) for one in segments], declared)
    sent = beginning(b, declared)
    # A begins as B does too, and goes on alike.
    send(beside, b"a", [*beginning(a, declared), *sent], declared)
    for (ids, _), (usage, probed), (other, other_probed) in zip(
        sent, send(alone, b"b", sent, declared), send(beside, b"b", sent, declared), strict=True
    ):
        shared = declared.num_shared(np.asarray(ids, dtype=np.int32).tobytes()) // 4 * 4
        assert usage is not None
        assert other is not None
        if warmed or not shared:
            assert (usage, probed) == (other, other_probed)
        else:
            assert max(usage.cached, min(shared, len(ids) - 1)) == max(
                other.cached, min(shared, len(ids) - 1)
            )
            assert max(*probed, shared) == max(*other_probed, shared)
            assert other_probed[0] >= probed[0]


def test_a_declared_segment_is_hit_by_all_and_stored_once() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64)
    declared = SharedPrefixes([np.arange(18, dtype=np.int32)])
    start, part = list(range(18)), list(range(17))
    (first,) = send(scheduler, b"a", [([*start, 30, 31], False)], declared)
    (second,) = send(scheduler, b"b", [([*start, 30, 31], True)], declared)
    assert (first[0].cached, second[0].cached) == (0, 16)  # type: ignore[union-attr]
    assert second[1] == (16,)
    pages = scheduler.cache.num_pages
    (third,) = send(scheduler, b"c", [([*part, 30, 31], False)], declared)
    assert third[0].cached == 0, "who does not begin with all of it is told nothing"  # type: ignore[union-attr]
    assert scheduler.cache.num_pages == pages + 5
    assert scheduler.cache.order.num_pages(EvictionClass.SHARED) == 4
    closed = answer(scheduler, LeaveQuestion(b"b", b"s", 0))
    assert isinstance(closed, SessionAnswer)
    assert closed.known
    assert scheduler.cache.order.num_pages(EvictionClass.SHARED) == 4, "no tenant can give it up"
    own = answer(scheduler, TreeQuestion(namespace=b"b"))
    assert isinstance(own, TreeAnswer)
    assert [(n.start, n.parent) for n in own.nodes] == [(16, None), (20, 0)], "of others nothing is told"


def test_who_shares_a_segment_waits_for_whoever_computes_it() -> None:
    scheduler = make_scheduler(page_size=4, num_pages=64, budget=8)
    start = list(range(24))
    for name in (b"a", b"b"):
        message = request(name.decode(), [*start, 40, 41], 2)
        scheduler.add(msgspec.structs.replace(message, namespace=name, shared=24))
    outputs = run(scheduler)
    usages = [outputs[rid][-1].usage for rid in ("a", "b")]
    assert [usage.cached for usage in usages if usage is not None] == [0, 24]


class SharingLoad(HintedLoad):
    """Any load of several namespaces with declared segments: everything ends and says what it would alone."""

    @rule(
        which=st.integers(0, 9),
        tail=st.lists(st.integers(0, 3), min_size=1, max_size=30),
        max_tokens=st.integers(1, 20),
        namespace=st.sampled_from([b"", b"a", b"b"]),
        session=st.sampled_from([b"", b"s"]),
    )
    def arrive_behind_a_segment(
        self, which: int, tail: list[int], max_tokens: int, namespace: bytes, session: bytes
    ) -> None:
        segments = [[0, 1, 2, 3] * 2, [0, 1, 2, 3] * 2 + [1, 1, 2], [2] * 5]
        declared = SharedPrefixes([np.asarray(one, dtype=np.int32) for one in segments])
        ids = segments[which % 3] + tail
        shared = declared.num_shared(np.asarray(ids[:47], dtype=np.int32).tobytes())
        self.known.append(ids)
        who = {"namespace": namespace, "shared": shared, "hints": Hints(namespace, session)}
        self.arrive(len(self.known) - 1, 60, [1], max_tokens, False, who)


TestSharingLoad = SharingLoad.TestCase
TestSharingLoad.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "JSON list"),
        ('[{"prompts": "a"}]', "give one of"),
        ('[{"prompt": "a", "token_ids": [1]}]', "give one of"),
        ('[{"prompt": "a"}, {"messages": []}]', r"\[1\]: messages"),
    ],
)
def test_a_file_that_declares_nothing_is_refused_with_its_entry(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "shared.json"
    path.write_text(text)
    with pytest.raises(SetupError, match=said):
        read_shared_prefixes(path)


def test_a_declared_system_prompt_is_warm_and_hit_by_every_key(
    tiny_options: EngineOptions, tmp_path: Path
) -> None:
    system = {"role": "system", "content": "You plan travels. " * 12}
    path = tmp_path / "shared.json"
    path.write_text(json.dumps([{"messages": [system]}]))
    options = ServerOptions(port=0, api_keys=("key-a", "key-b"), shared_prefixes=path)
    with running_server(tiny_options, options) as server:
        server.wait_idle()
        told = []
        for key in ("key-a", "key-b"):
            body = {"messages": [system, {"role": "user", "content": "Where to?"}], "max_tokens": 2}
            own = {"deeproot": {"explain": True}, "cache_salt": key}
            headers = {"Authorization": f"Bearer {key}"}
            url = f"{server.url}/v1/chat/completions"
            told.append(httpx.post(url, json={**body, **own}, headers=headers, timeout=60).json())
        cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in told]
        assert cached[0] == cached[1] > 100
        (explanation,) = told[1]["deeproot"]["explanations"]
        assert explanation["matched_tokens"] == explanation["ceiling_tokens"] == cached[1]
        tree = httpx.get(f"{server.url}/v1/cache/tree", headers={"Authorization": "Bearer key-b"}).json()
        assert all(node["zone"] != "shared" and "travels" not in node["text"] for node in tree["nodes"])
        assert server.metrics()['deeproot_cache_hit_tokens_total{class="shared"}'] == sum(cached)
        server.wait_idle()


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
