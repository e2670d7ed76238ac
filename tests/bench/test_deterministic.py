"""The bench of the deterministic mode on a tiny model."""

import json
from pathlib import Path

from tests.engine.hf import tiny_model

from deeproot.bench.deterministic import main, run


def test_a_run(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", num_hidden_layers=1)
    record = run(tmp_path, "float32", num_tokens=140, rows=[16, 4], last=5, repeats=1)
    assert [cost["rows"] for cost in record["costs"]] == [None, 16, 4]
    assert all(cost["invariant"] for cost in record["costs"][1:])
    assert all(cost["prefill_s"] > 0 and cost["decode_batch_s"] > 0 for cost in record["costs"])
    cases = ["chunks of 64", "chunks of 1", "cached by another", "in a batch of 8"]
    assert [one["case"] for one in record["deterministic"]] == cases
    assert all(one["equal"] and one["largest"] == 0 for one in record["deterministic"])
    # Ordinary steps are near, whether or not they happen to be equal on a model so small.
    assert all(one["largest"] < 1e-3 for one in record["ordinary"])


def test_the_command_writes_a_table_of_every_dtype(tmp_path: Path) -> None:
    tiny_model(tmp_path, "llama", num_hidden_layers=1)
    out = tmp_path / "found.json"
    sizes = ["--tokens", "140", "--rows", "16", "--last", "5", "--repeats", "1"]
    main(["--model", str(tmp_path), "--dtypes", "float32", "bfloat16", *sizes, "--out", str(out)])
    records, table = json.loads(out.read_text()), out.with_suffix(".md").read_text()
    assert [record["dtype"] for record in records] == ["float32", "bfloat16"]
    for record in records:
        ordinary, fixed = record["costs"]
        assert f"## {record['dtype']}" in table
        assert f"{fixed['decode_s'] * 1e3:,.1f} ({fixed['decode_s'] / ordinary['decode_s']:.1f})" in table
