"""Price files and what a call costs under them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeproot.bench.cachesim.call import Served
from deeproot.bench.cachesim.hosted import AutomaticCache, BreakpointCache
from deeproot.bench.cachesim.prices import PriceFileError, read_prices

GOOD = {
    "name": "x", "as_of": "2025-01", "source": "y", "input": 3.0, "cached": 0.3, "written": 3.75, "output": 15.0,
    "rules": {"min_tokens": 10, "ttl_s": None, "breakpoints": True},
}  # fmt: skip


def test_every_shipped_table_has_a_date_and_a_source_and_a_cache() -> None:
    tables = read_prices()
    assert {type(table.cache()) for table in tables} == {AutomaticCache, BreakpointCache}
    assert len({table.name for table in tables}) == len(tables)
    assert all(table.as_of[:2] == "20" and table.cached < table.input <= table.written for table in tables)


def test_dollars(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([GOOD]))
    (table,) = read_prices(tmp_path / "p.json")
    assert table.dollars(1_000_000, Served(0), 0) == pytest.approx(3.0)
    assert table.dollars(1_000_000, Served(600_000, 300_000), 100_000) == pytest.approx(
        0.3 + 0.18 + 1.125 + 1.5
    )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"source": 3}, "source"),
        ({"input": -1}, "input"),
        ({"cached": True}, "cached"),
        ({"rules": []}, "rules"),
        ({"rules": {"min_tokens": 1.5}}, "min_tokens"),
        ({"rules": {"min_tokens": True}}, "min_tokens"),
        ({"rules": {"increment": 0}}, "increment"),
        ({"rules": {"colour": 1}}, "colour"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], field: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([GOOD | change]))
    with pytest.raises(PriceFileError, match=field):
        read_prices(tmp_path / "p.json")


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from([*GOOD]), st.none() | st.integers() | st.floats() | st.text(max_size=3))
)
def test_any_object_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, change: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("prices") / "p.json"
    path.write_text(json.dumps([GOOD | change]))
    try:
        (table,) = read_prices(path)
    except PriceFileError:
        return
    assert table.dollars(10, Served(5), 1) >= 0
