"""The page at `/` in a real browser, and what it is made of."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chromium
import httpx
import pytest

from deeproot.runtime.options import EngineOptions, ServerOptions

from .harness import RunningServer, running_server

SYSTEM = {"role": "system", "content": "You are careful, and you look before you answer. " * 4}


def say(server: RunningServer, text: str, **headers: str) -> dict[str, Any]:
    body = {
        "messages": [SYSTEM, {"role": "user", "content": text}],
        "max_tokens": 4,
        "deeproot": {"session_id": text, "lease_s": 60},
    }
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def get(server: RunningServer, path: str, **headers: str) -> httpx.Response:
    return httpx.get(f"{server.url}{path}", headers=headers, timeout=60)


@pytest.fixture
def browser() -> str:
    found = chromium.find_browser()
    if found is None:
        pytest.skip(f"there is no browser here: install one of {', '.join(chromium.NAMES)}")
    return found


@pytest.fixture
def page(browser: str, server: RunningServer, tmp_path: Path) -> Iterator[chromium.Page]:
    with chromium.opened(browser, f"{server.url}/", tmp_path / "profile") as opened:
        yield opened


def test_the_document_needs_nothing_from_elsewhere(server: RunningServer) -> None:
    reply = get(server, "/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "unsafe" not in reply.headers["content-security-policy"]
    addresses = re.findall(r"(?:https?:)?//[\w.]+", reply.text)
    assert set(addresses) == {"http://www.w3.org"}, "names of markup, which nobody fetches"
    assert "/" not in get(server, "/openapi.json").json()["paths"]


def test_the_tree_is_told_as_it_is(server: RunningServer) -> None:
    for text in ("Look at the first test.", "Look at the second test.", "Something else."):
        say(server, text)
    server.wait_idle()
    told = get(server, "/v1/cache/tree").json()
    cache = server.engine.scheduler.cache
    assert told["num_nodes"] == len(told["nodes"]) == cache.num_nodes
    assert sum(node["num_pages"] for node in told["nodes"]) == cache.num_pages
    by_id = {node["id"]: node for node in told["nodes"]}
    assert len(by_id) == len(told["nodes"])
    for node in told["nodes"]:
        above = by_id.get(node["parent"])
        assert node["start"] == (0 if above is None else above["start"] + above["num_tokens"])
    first = next(node for node in told["nodes"] if node["parent"] is None)
    assert first["text"].startswith("<|im_start|>system\nYou are careful")
    assert max(node["num_children"] for node in told["nodes"]) >= 2
    assert len(get(server, "/v1/cache/tree?max_nodes=1").json()["nodes"]) == 1
    assert get(server, "/v1/cache/tree?max_nodes=0").status_code == 422


def test_the_figures_add_up(server: RunningServer) -> None:
    say(server, "Once more.")
    server.wait_idle()
    deadline = time.monotonic() + 20
    # Causes are found when the engine is idle, a little later.
    while not (stats := get(server, "/v1/cache/stats").json())["misses"] and time.monotonic() < deadline:
        time.sleep(0.05)
    pages, scheduler = stats["pages"], server.engine.scheduler
    assert pages["free"] + sum(pages["cached"].values()) == pages["total"] == scheduler.pool.num_pages
    assert sum(stats["hits"].values()) == stats["tokens"]["cached"]
    assert stats["tokens"]["prompt"] == server.metrics()["deeproot_prompt_tokens_total"] > 0
    assert set(stats["misses"]) >= {"first_seen"}


def test_each_key_sees_its_own_tree(tiny_options: EngineOptions) -> None:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("one", "two"))) as running:
        mine, theirs = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        say(running, "A secret.", **mine)
        assert "You are careful" in get(running, "/v1/cache/tree", **mine).text
        assert get(running, "/v1/cache/tree", **theirs).json()["nodes"] == []
        assert get(running, "/v1/cache/tree").status_code == 401
        assert get(running, "/v1/cache/stats").status_code == 401
        assert get(running, "/").status_code == 200


def test_what_is_served_is_shown(server: RunningServer, page: chromium.Page) -> None:
    for text in ("Look at the third test.", "Look at the fourth test."):
        rid = say(server, text)["id"]
    page.wait_for("document.getElementById('state').textContent === 'Live'")
    page.wait_for("document.querySelectorAll('#tree summary').length > 2")
    words = page.evaluate("document.getElementById('tree').textContent")
    assert "shared by" in words
    assert "You are careful" in words
    assert re.search(r"lease \d+ s", words)
    # Zones are told by words and not by colour alone, and the figures are the engine's.
    assert "root" in page.evaluate("document.getElementById('legend').textContent")
    figures = page.evaluate("document.getElementById('figures').innerText")
    assert f"of {server.engine.scheduler.pool.num_pages:,}" in figures
    page.wait_for(f"document.getElementById('requests').textContent.includes({rid[:24]!r})")
    page.evaluate("document.querySelector('#requests button').click()")
    assert '"misses"' in page.evaluate("document.getElementById('explanation').textContent")
    # It goes on by itself.
    say(server, "A new branch appears.")
    page.wait_for("document.getElementById('tree').textContent.includes('A new branch')")
    page.wait_for("document.querySelectorAll('#chart rect').length > 0")
    assert page.errors == []
    assert {url for url in page.requests if not url.startswith(server.url)} <= {"data:,"}


def test_from_the_keyboard_and_in_both_schemes(server: RunningServer, page: chromium.Page) -> None:
    say(server, "Look at the fifth test.")
    say(server, "Look at the sixth test.")
    page.wait_for("document.querySelectorAll('#tree summary').length > 2")
    focused = "document.activeElement.dataset.id"
    is_open = "document.activeElement.parentElement.open"
    for _ in range(40):
        page.press("Tab", 9)
        if page.evaluate(focused):
            break
    node, before = page.evaluate(focused), page.evaluate(is_open)
    assert node, "the tree can be reached with the Tab key"
    page.press("Enter", 13)
    page.wait_for(f"{is_open} === {'false' if before else 'true'}")
    # Neither the focus nor what was folded is lost when the page is drawn anew.
    page.evaluate("document.getElementById('tree').firstChild.marked = true")
    page.wait_for("!document.getElementById('tree').firstChild.marked")
    assert page.evaluate(focused) == node
    assert page.evaluate(is_open) is not before
    colours = []
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.screenshot().startswith(b"\x89PNG")
    assert colours[0] != colours[1]
    assert page.errors == []


def test_a_key_is_asked_for(browser: str, tiny_options: EngineOptions, tmp_path: Path) -> None:
    with running_server(tiny_options, ServerOptions(port=0, api_keys=("one",))) as running:
        say(running, "Hello.", Authorization="Bearer one")
        with chromium.opened(browser, f"{running.url}/", tmp_path / "profile") as page:
            page.wait_for("!document.getElementById('key').hidden")
            page.evaluate(
                "document.querySelector('#key input').value = 'one';"
                "document.querySelector('#key').requestSubmit()"
            )
            page.wait_for("document.getElementById('state').textContent === 'Live'")
            page.wait_for("document.getElementById('tree').textContent.includes('You are careful')")
            assert page.evaluate("document.getElementById('key').hidden")
