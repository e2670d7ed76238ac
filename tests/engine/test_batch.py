"""Padding of a batch of decodes."""

from pathlib import Path

import pytest
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import make_runner, tiny_llama
from tests.engine.sequences import random_ids, scattered_pages

from deeproot.engine.batch import pad_decodes


def test_padding_changes_no_logits_and_no_page_but_its_own(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    sequences = random_ids(20, 1, 33)
    pages = scattered_pages(sequences, 16)
    logits, pools = [], []
    for size in (3, 8):
        runner = make_runner(tmp_path)
        page = runner.pool.padding_page
        for layer in range(3):
            for tensor in runner.pool.kv(layer):
                tensor[page] = 0
        prefill = [Chunk(ids[:-1], 0, own) for ids, own in zip(sequences, pages, strict=True) if len(ids) > 1]
        runner.logits(make_batch(prefill, 16))
        decodes = [Chunk(ids, len(ids) - 1, own) for ids, own in zip(sequences, pages, strict=True)]
        batch = pad_decodes(make_batch(decodes, 16), size, page, 16)
        assert len(batch.input_ids) == len(batch.page_table) == size
        logits.append(runner.logits(batch))
        pools.append(torch.stack([tensor[:page] for layer in range(3) for tensor in runner.pool.kv(layer)]))
        assert (runner.pool.kv(0)[0][page].any()) == (size > 3), "padding must be computed like all else"
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(pools[0], pools[1], rtol=1e-5, atol=1e-5, equal_nan=True)


def test_only_decodes_that_fit_can_be_padded() -> None:
    decodes = make_batch([Chunk([1, 2, 3], 2, [0])] * 2, 16)
    assert pad_decodes(decodes, 2, 9, 16) is decodes
    with pytest.raises(ValueError, match="2 sequences do not fit into a batch of 1"):
        pad_decodes(decodes, 1, 9, 16)
    with pytest.raises(ValueError, match="3 new tokens of 2 sequences"):
        pad_decodes(make_batch([Chunk([1, 2, 3], 2, [0]), Chunk([1, 2], 0, [1])], 16), 4, 9, 16)
