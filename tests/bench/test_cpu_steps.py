"""The benchmark of steps runs every kind of step with each side, and its batches are what they say."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tests.engine.gguf_files import write_gguf
from tests.engine.hf import tiny_llama
from tests.helpers.cpu_forms import needs_bf16
from tests.runtime.tiny_model import write_tiny_model

from deeproot.bench.cpu_steps import CASES, PAGE_SIZE, Case, batch_of, main


def test_a_batch_has_the_case_in_it() -> None:
    batch = batch_of(Case("", 3, 70, 5), 70, 5, 100)
    assert batch.seq_lens.tolist() == [75] * 3
    assert batch.cu_seqlens_q.tolist() == [0, 5, 10, 15]
    assert batch.logits_indices.tolist() == [4, 9, 14]
    # No two sequences share a page, and each token lies where its position says.
    assert len(np.unique(batch.page_table)) == batch.page_table.size
    assert len(np.unique(batch.slot_mapping)) == 15
    assert (batch.slot_mapping % PAGE_SIZE == batch.positions % PAGE_SIZE).all()


def test_the_table_has_a_line_for_each_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path)
    short = [case for case in CASES if case.cached + case.new <= 600]
    main(["--model", str(tmp_path), "--load-format", "dummy", "--rounds", "1", "--longest", "600"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[3:]] == [f"| {case.name}" for case in short]
    assert len(short) >= 3


@needs_bf16
def test_quantised_sides_stand_beside_the_dense_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_llama(tmp_path, hidden_size=64, intermediate_size=96, num_attention_heads=4)
    path = write_gguf(tmp_path / "m.gguf", "llama", model, GGMLQuantizationType.Q4_1)
    sides = ["--sides", "cpu", "cpu-int8", "cpu-gguf"]
    main(["--model", str(path), "--rounds", "1", "--longest", "130", *sides])
    _, heads, _, *rows = capsys.readouterr().out.splitlines()
    assert [cell.split()[0] for cell in heads.split(" | ")[1:]] == sides[1:]
    assert [row.count(" | ") for row in rows] == [3, 3, 3]
