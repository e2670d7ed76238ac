"""The six layouts through a running server: each loses for the reason that its name says."""

from collections.abc import Iterator

import pytest

from deeproot.bench.layout_causes import LAYOUTS, Result, run_layout, table

from ..runtime.server.harness import RunningServer
from .byte_server import byte_server

CAUSES = {
    "correct": set(),
    "timestamp in the system message": {"changed_time"},
    "tools shuffled": {"changed_order"},
    "profile changes": {"changed_text"},
    "sliding window": {"messages_removed"},
    "history as text": {"history_as_text"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with byte_server(tmp_path_factory.mktemp("models"), 8192) as running:
        yield running


@pytest.fixture(scope="module")
def results(server: RunningServer) -> dict[str, Result]:
    """Three turns of each layout, and the first; the tiny model's replies are random bytes."""
    url = f"{server.url}/v1"
    return {name: run_layout(url, layout, turns=4, salt=name) for name, layout in LAYOUTS.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_loss_is_named(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert set(result.misses) - {"first_seen"} == CAUSES[name]
    lost = sum(tokens for cause, tokens in result.misses.items() if cause != "first_seen")
    if CAUSES[name]:
        assert lost > result.misses["first_seen"] / 4
    # Nothing else ran, and the cache had room: it had all that a cache without end would have had.
    assert result.cached == result.ceiling


def test_the_correct_layout_hits_most(results: dict[str, Result]) -> None:
    best = results["correct"].hit_rate
    assert best > 0.9
    assert all(result.hit_rate < best for name, result in results.items() if name != "correct")
    assert results["timestamp in the system message"].hit_rate < 0.1
    lines = table(results).splitlines()
    assert len(lines) == 2 + len(LAYOUTS)
