"""Padding of a batch of decodes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import make_runner, tiny_llama
from tests.engine.sequences import random_ids, scattered_pages

from deeproot.engine.batch import one_sequence, pad_decodes


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


def test_a_batch_of_one_sequence() -> None:
    ids, pages = list(range(40)), [3, 1, 2, 0]
    made = one_sequence(np.array(ids, np.int32), 17, np.array(pages, np.int32), 16)
    wanted = make_batch([Chunk(ids, 17, pages[:3], all_logits=True)], 16)
    for name in (
        "input_ids",
        "positions",
        "slot_mapping",
        "page_table",
        "cu_seqlens_q",
        "seq_lens",
        "logits_indices",
    ):
        assert np.array_equal(getattr(made, name), getattr(wanted, name)), name
    assert (made.sampling.temperature == 0).all()
