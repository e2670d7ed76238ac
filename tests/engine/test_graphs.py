"""The buffers of decode graphs, over a real model and the Triton backend in the interpreter.

There is no CUDA here, so what stands in for a graph calls the captured function on the same buffers again. As with a
real graph, nothing but what lies in buffers reaches it: it keeps the backend as it was when the graph was captured,
and gives its result in the same tensor each time.
"""

import copy
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import make_runner, tiny_llama
from tests.engine.sequences import random_ids, scattered_pages

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_triton import TritonAttention, TritonTuning
from deeproot.engine.graphs import Compute, DecodeGraphs, Graph, graph_sizes
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.radix import RadixCache
from deeproot.engine.runner import Runner
from deeproot.kernels.configs import DecodeConfig, PrefillConfig
from deeproot.runtime.options import SetupError
from deeproot.runtime.runner_setup import _capture_graphs
from deeproot.scheduler.config import SchedulerConfig
from deeproot.scheduler.invariants import check_idle
from deeproot.scheduler.messages import AddRequest, SamplingParams
from deeproot.scheduler.scheduler import Scheduler

TUNING = TritonTuning(
    prefill=PrefillConfig("gather", 32, 32, 4, 2), decode=DecodeConfig("gather", 32, 8, 4, 2)
)
CPU = torch.device("cpu")


class Again:
    """Stands in for a captured graph."""

    def __init__(self, compute: Compute, attention: AttentionBackend) -> None:
        self._compute = compute
        self._attention = copy.copy(attention)
        self._hidden = torch.empty_like(compute(attention))

    def replay(self) -> torch.Tensor:
        return self._hidden.copy_(self._compute(self._attention))


class Captures:
    """Counts what it captures."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []

    def __call__(self, compute: Compute, attention: AttentionBackend) -> Graph:
        self.graphs.append(Again(compute, attention))
        return self.graphs[-1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(folder, num_attention_heads=2, num_key_value_heads=1, head_dim=64, num_hidden_layers=2)
    return folder


def with_graphs(plain: Runner, sizes: list[int]) -> tuple[Runner, Captures]:
    """A runner of the same model with a pool of its own, by the Triton backend and graphs of these sizes."""
    config = plain.model.config
    pool = KVPool(plain.pool.layout, plain.pool.num_pages)
    for layer in range(config.num_layers):
        for tensor in pool.kv(layer):
            tensor[: pool.num_pages] = torch.nan
    limits = BatchLimits(max_seqs=8, max_tokens=64, max_model_len=256)
    attention = TritonAttention(pool, config.num_qo_heads, limits, torch.float32, tuning=TUNING)
    captures = Captures()
    graphs = DecodeGraphs(plain.model, pool, attention, sizes, CPU, captures)
    return Runner(plain.model, pool, attention, graphs=graphs), captures


def test_replayed_steps_give_what_plain_ones_give(model: Path) -> None:
    plain = make_runner(model)
    runner, captures = with_graphs(plain, [1, 2, 4])
    sequences = random_ids(20, 9, 33)
    pages = scattered_pages(sequences, plain.pool.page_size, spare=8)
    cached = [0, 0, 0]
    # Three sequences, padded to four; then one alone; then two, in another order than before; then all, in a batch with
    # one that computes several tokens.
    for chosen in ([0, 1, 2], [0, 1, 2], [0, 1, 2], [1], [1], [2, 0], [2, 0], [0, 1, 2]):
        chunks = [Chunk(sequences[i], cached[i], pages[i]) for i in chosen]
        batch = make_batch(chunks, plain.pool.page_size)
        tokens = runner.forward(batch).token_ids
        assert tokens.tolist() == plain.forward(batch).token_ids.tolist()
        for i, token in zip(chosen, tokens.tolist(), strict=True):
            cached[i] = len(sequences[i])
            sequences[i].append(token)
        if chosen == [2, 0]:
            sequences[1].append(5)
    assert len(captures.graphs) == len(runner.graphs or []) == 3, "one for each size that was needed"


def test_all_sizes_can_be_captured_before_the_first_request(model: Path) -> None:
    plain = make_runner(model)
    runner, captures = with_graphs(plain, [1, 2, 4])
    assert runner.graphs is not None
    runner.capture_graphs()
    assert len(captures.graphs) == 3
    (ids,) = random_ids(18)
    for n in (17, 18):
        batch = make_batch([Chunk(ids[:n], 17 if n == 18 else 0, [3, 1])], plain.pool.page_size)
        assert runner.forward(batch).token_ids.tolist() == plain.forward(batch).token_ids.tolist()
    assert len(captures.graphs) == 3


def test_a_failing_capture_ends_the_start_with_what_to_do(model: Path) -> None:
    runner, _ = with_graphs(make_runner(model), [1])

    def fail(compute: Compute, attention: AttentionBackend) -> Graph:
        raise RuntimeError("operation not permitted")

    assert runner.graphs is not None
    runner.graphs._capture = fail
    with pytest.raises(SetupError, match=r"operation not permitted.*--enforce-eager"):
        _capture_graphs(runner)


def test_batches_larger_than_any_graph_run_without(model: Path) -> None:
    plain = make_runner(model)
    runner, captures = with_graphs(plain, [1, 2])
    sequences = random_ids(5, 6, 7)
    pages = scattered_pages(sequences, plain.pool.page_size)
    for n in (1, 0):
        chunks = [
            Chunk(ids[: len(ids) - n], 0 if n else len(ids) - 1, own)
            for ids, own in zip(sequences, pages, strict=True)
        ]
        batch = make_batch(chunks, plain.pool.page_size)
        assert runner.forward(batch).token_ids.tolist() == plain.forward(batch).token_ids.tolist()
    assert not captures.graphs


def test_overlap_and_graphs_together_change_no_token(model: Path) -> None:
    plain = make_runner(model, num_pages=12)
    runner, captures = with_graphs(plain, [1, 2, 4])
    said = []
    for side, overlap in ((plain, False), (runner, True)):
        scheduler = Scheduler(SchedulerConfig(4, 32, 128, overlap), RadixCache(16), side.pool, side)
        for i, ids in enumerate(random_ids(21, 5, 21, 40, seed=3)):
            sampling = SamplingParams(max_tokens=5 + i, temperature=0.8, seed=i, stop_token_ids=(7,))
            scheduler.add(AddRequest(str(i), np.array(ids, np.int32).tobytes(), sampling))
        outputs = []
        while scheduler.has_work:
            outputs += scheduler.step()
        check_idle(scheduler)
        said.append({str(i): [o.token_id for o in outputs if o.rid == str(i)] for i in range(4)})
    assert said[0] == said[1]
    assert all(said[0].values())
    assert captures.graphs


@given(max_num_seqs=st.integers(1, 2000))
def test_sizes_reach_the_largest_batch_in_steps_that_waste_little(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_seqs
    assert len(sizes) <= 30 + max_num_seqs // 32
    for smaller, larger in itertools.pairwise(sizes):
        assert larger <= 8 or larger - smaller <= 8 or larger - smaller <= smaller / 4
