"""The benchmark of perplexity: its sums by hand, and a run on a tiny model."""

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import tiny_llama
from tests.engine.sequences import random_ids
from tests.helpers.cpu_forms import needs_bf16

from deeproot.bench.fp8_kv import Difference
from deeproot.bench.perplexity import FORMS, row_of, run, table


def test_sums_by_hand() -> None:
    windows = [Difference(0.5, 1.0, 0.25, 2.0, 1.5), Difference(0.5, 0.5, 0.75, 4.0, 3.5)]
    row = row_of("x", windows)
    assert row.perplexity == pytest.approx(math.exp(3))
    assert row.over_float32 == pytest.approx(math.exp(0.5) - 1)
    assert (row.divergence, row.same_best) == (0.5, 0.75)


@needs_bf16
def test_a_run_with_every_form(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, GGMLQuantizationType.Q4_1)
    [ids] = random_ids(70)
    record = run(path, np.array(ids, np.int32), 30)
    rows = record["forms"]
    assert isinstance(rows, list)
    assert record["tokens"] == 60
    assert [row["name"] for row in rows] == [form.name for form in FORMS]
    # All are the same weights but for roundings, and none is float32 itself.
    assert all(0 < row["divergence"] < 0.02 for row in rows)
    assert len(table(record)) == 3 + len(FORMS)


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the text has 9 tokens, less than a window of 512"):
        run(tmp_path, np.zeros(9, np.int32), 512)
