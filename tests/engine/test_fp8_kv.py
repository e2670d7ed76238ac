"""K and V in e4m3: what is kept, what is read, where the scales come from, on both backends."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.engine.attention_check import Kind, brute_force
from tests.engine.batches import Chunk, make_batch
from tests.engine.hf import relative_error, tiny_llama
from tests.engine.sequences import random_ids, run_in_steps

from deeproot.engine.attention import AttentionBackend, BatchLimits
from deeproot.engine.attention_torch import TorchAttention
from deeproot.engine.attention_triton import TritonAttention, TritonTuning
from deeproot.engine.kv_pool import FP8, KVLayout, KVPool
from deeproot.engine.kv_scales import HEADROOM, measure_kv_scales
from deeproot.engine.loading import load_model, make_attention
from deeproot.engine.page_ops import PageOps, TorchPageOps
from deeproot.engine.page_ops_triton import TritonPageOps
from deeproot.engine.runner import Runner
from deeproot.kernels.configs import DecodeConfig, PrefillConfig

KV_HEADS, GROUP, DIM, PAGE = 2, 2, 64, 16
LENGTHS = [(40, 1), (0, 5), (33, 1), (70, 3)]
"""Cached and new tokens; the first and the third share 32."""


def nearest_e4m3(x: torch.Tensor) -> torch.Tensor:
    """Each number's nearest neighbour among all that e4m3 has, in float64."""
    values = torch.arange(256).to(torch.uint8).view(FP8).double()
    values = values[values.isfinite()].unique()
    return values[(x.double().unsqueeze(-1) - values).abs().argmin(-1)]


class Case:
    """Sequences whose cached tokens lie in an e4m3 pool with scales of its own for each head."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        scales = torch.rand(2, 1, KV_HEADS, generator=generator) / 20 + 0.01
        self.pool = KVPool(KVLayout(1, KV_HEADS, DIM, PAGE, FP8), 20, scales=(scales[0], scales[1]))
        pages = [self.pool.alloc(-(-sum(lengths) // PAGE)) for lengths in LENGTHS]
        self.pool.alloc(self.pool.num_free)
        kv = [torch.randn(2, sum(lengths), KV_HEADS, DIM, generator=generator) * 3 for lengths in LENGTHS]
        pages[2][:2] = pages[0][:2]
        kv[2][:, :32] = kv[0][:, :32]
        for (cached, _), own, both in zip(LENGTHS, pages, kv, strict=True):
            for t in range(cached):
                for tensor, scale, rows in zip(self.pool.kv(0), scales, both, strict=True):
                    kept = nearest_e4m3(rows[t] / scale[0, :, None])
                    tensor.view(torch.uint8)[own[t // PAGE], :, t % PAGE] = kept.to(FP8).view(torch.uint8)
        chunks = [
            Chunk([0] * sum(lengths), lengths[0], own.tolist())
            for lengths, own in zip(LENGTHS, pages, strict=True)
        ]
        self.batch = make_batch(chunks, PAGE)
        self.q = torch.randn(10, KV_HEADS * GROUP, DIM, generator=generator)
        new = torch.cat([both[:, cached:] for both, (cached, _) in zip(kv, LENGTHS, strict=True)], 1)
        self.k, self.v = new[0], new[1]
        read = [
            nearest_e4m3(both / scales[:, 0, :, None].unsqueeze(1)) * scales[:, 0, :, None].unsqueeze(1)
            for both in kv
        ]
        self.read = [(rows[0], rows[1]) for rows in read]

    def expected(self, kind: Kind) -> torch.Tensor:
        parts = self.q.split([new for _, new in LENGTHS])
        return torch.cat([brute_force(q, k, v, kind) for q, (k, v) in zip(parts, self.read, strict=True)])


def make_triton(pool: KVPool, kind: Kind) -> TritonAttention:
    prefill, decode = PrefillConfig("gather", 32, 32, 4, 2), DecodeConfig("gather", 32, 8, 4, 2)
    tuning = TritonTuning("always", 32, prefill, decode)
    limits = BatchLimits(8, 64, 128)
    return TritonAttention(
        pool, KV_HEADS * GROUP, limits, torch.float32, cap=kind.cap, windows=[kind.window], tuning=tuning
    )


def make_torch(pool: KVPool, kind: Kind) -> TorchAttention:
    return TorchAttention(pool, cap=kind.cap, windows=[kind.window], dtype=torch.float32)


@pytest.mark.parametrize("kind", [Kind(), Kind(window=20, cap=2.0)])
@pytest.mark.parametrize(("make", "tolerance"), [(make_torch, 1e-5), (make_triton, 1e-2)])
def test_attention_over_e4m3_is_attention_over_what_was_kept(
    kind: Kind, make: type[AttentionBackend], tolerance: float
) -> None:
    """The kernels add a query in two e4m3 terms and weights in fp16, so they are less exact than torch."""
    case = Case()
    attention = make(case.pool, kind)
    attention.plan(case.batch)
    expected = case.expected(kind)
    assert relative_error(attention.run(0, case.q, case.k, case.v).double(), expected) < tolerance


def test_both_backends_keep_the_same_bytes() -> None:
    kept = []
    for make in (make_torch, make_triton):
        case = Case()
        attention = make(case.pool, Kind())
        attention.plan(case.batch)
        attention.run(0, case.q, case.k * 100, case.v)
        kept.append([tensor.view(torch.uint8) for tensor in case.pool.kv(0)])
        assert case.pool.kv(0)[0].float().abs().max() == 448, "nothing was clamped: the test is too weak"
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))


@pytest.mark.parametrize("ops", [TorchPageOps(), TritonPageOps()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8])
def test_pages_are_zeroed_and_copied(dtype: torch.dtype, ops: PageOps) -> None:
    pool = KVPool(KVLayout(2, 1, 8, 4, dtype), 5, ops=ops)
    pool.alloc(5)
    for layer in range(2):
        for tensor in pool.kv(layer):
            tensor.copy_(torch.rand(tensor.shape) + 1)
    before = [tensor.float().clone() for layer in range(2) for tensor in pool.kv(layer)]
    pool.free(np.array([3, 1], np.int32))
    assert sorted(pool.alloc(2)) == [1, 3]
    pool.copy(0, 3, 3)
    for tensor, old in zip((tensor for layer in range(2) for tensor in pool.kv(layer)), before, strict=True):
        wanted = old.clone()
        wanted[[1, 3]] = 0
        wanted[3, :, :3] = old[0, :, :3]
        assert torch.equal(tensor.float(), wanted)


def test_scales_are_the_largest_of_each_head_with_room_above(tmp_path: Path) -> None:
    """Against K and V as transformers caches them."""
    model = tiny_llama(tmp_path)
    [ids] = random_ids(60)
    cache = model(torch.tensor([ids]), use_cache=True).past_key_values
    loaded = load_model(tmp_path, dtype="float32")
    k_scale, v_scale = measure_kv_scales(
        loaded.model, torch.float32, loaded.device, np.array(ids, dtype=np.int32)
    )
    for layer in range(3):
        for scale, kept in ((k_scale, cache.layers[layer].keys), (v_scale, cache.layers[layer].values)):
            largest = kept[0].detach().abs().amax((1, 2))
            torch.testing.assert_close(scale[layer] * 448, HEADROOM * largest, rtol=1e-4, atol=0)


def test_chunks_and_cached_tokens_give_what_a_whole_prefill_gives(tmp_path: Path) -> None:
    tiny_llama(tmp_path)
    loaded = load_model(tmp_path, dtype="float32")
    scales = measure_kv_scales(loaded.model, torch.float32, loaded.device)
    [ids] = random_ids(100)
    logits = []
    for dtype, steps in ((FP8, [100]), (FP8, [33, 1, 66]), (torch.float32, [100])):
        pool = KVPool(loaded.config.kv_layout(PAGE, dtype), 8, scales=scales)
        attention = make_attention(loaded.config, pool, dtype=torch.float32)
        pages = pool.alloc(7).tolist()
        logits.append(run_in_steps(Runner(loaded.model, pool, attention), ids, pages, steps))
    assert relative_error(logits[1], logits[0]) < 1e-2
    assert 1e-3 < relative_error(logits[0], logits[2]) < 0.1, "e4m3 has an error, but a small one"
