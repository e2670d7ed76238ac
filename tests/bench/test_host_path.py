"""The benchmark of the host path, once and small."""

import pytest

from deeproot.bench.host_path import Tree, main


def test_every_figure_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--context", "1000", "--times", "2"]) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    figures = {
        name.strip(): float(figure)
        for name, figure in (row.removeprefix("|").removesuffix("|").split("|") for row in rows)
    }
    assert list(figures) == [
        "turn, 1,000 + 2,000 tokens, µs",
        "match 10 tokens, µs",
        "match 100 tokens, µs",
        "match 1,000 tokens, µs",
        "evict 100 tokens of 10,000, µs",
        "bytes a cached token",
        "decode step of 8 requests, µs",
        "decode step of 64 requests, µs",
        "decode step of 256 requests, µs",
    ]
    assert all(figure > 0 for figure in figures.values())


def test_what_is_timed_is_cached() -> None:
    tree = Tree(16)
    ids = tree.ids(100)
    tree.insert(ids)
    assert tree.cache.match(ids).num_reusable == 100
    assert tree.cache.match(tree.ids(100)).num_reusable == 0
    assert len(tree.cache.evict(3)) == 3
