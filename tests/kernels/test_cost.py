"""Costs and floors by hand-worked cases, and by the source's worked examples."""

import subprocess
import sys

import pytest

from deeproot.kernels import cost
from deeproot.kernels.devices import DEVICES

H100, H200 = DEVICES["H100 SXM"], DEVICES["H200"]


def brute_pairs(new: int, cached: int, window: int) -> int:
    return sum(1 for q in range(cached, cached + new) for k in range(q + 1) if not window or k > q - window)


@pytest.mark.parametrize("window", [0, 1, 3, 7, 100])
@pytest.mark.parametrize(("new", "cached"), [(1, 0), (5, 0), (1, 9), (4, 3), (6, 20)])
def test_attended_pairs(new: int, cached: int, window: int) -> None:
    assert cost.attended(new, cached, window) == brute_pairs(new, cached, window)


def test_decode_by_hand() -> None:
    """6,000 tokens of 8 heads of 128 in bf16 are 24.576 MB: 5.7 us on an H200, 91 us for sixteen of them."""
    one = cost.paged_decode([6000], 32, 8, 128)
    assert one.bytes == 2 * 6000 * 8 * 128 * 2 + 32 * (2 * 128 * 2 + 4)
    assert one.flops == 4 * 6000 * 32 * 128
    assert one.exps == 6000 * 32
    assert cost.floor_seconds(one, H200) == pytest.approx(5.7e-6, rel=0.01)
    assert cost.floor_seconds(cost.paged_decode([6000] * 16, 32, 8, 128), H200) == pytest.approx(
        91e-6, rel=0.01
    )


def test_prefill_chunk_by_hand() -> None:
    """512 tokens on 6,000 cached, an 8B model's layer on an H200: 67 us, bound by the matrix units."""
    chunk = cost.paged_prefill([(512, 6000)], 32, 8, 128)
    assert chunk.flops == 4 * (512 * 6000 + 512 * 513 // 2) * 32 * 128
    assert cost.floor_seconds(chunk, H200) == pytest.approx(67e-6, rel=0.02)
    assert chunk.flops / H200.bf16_flops > chunk.bytes / H200.bytes_per_s


def test_exponentials_at_head_dim_64() -> None:
    """At D 64 they take about 80% of the matrix units' time."""
    chunk = cost.paged_prefill([(4096, 0)], 32, 8, 64)
    assert (chunk.exps / H200.exps_per_s) / (chunk.flops / H200.bf16_flops) == pytest.approx(0.8, abs=0.02)


def test_fp8_halves_decode() -> None:
    half = cost.paged_decode([100_000], 32, 8, 128, kv_itemsize=1)
    whole = cost.paged_decode([100_000], 32, 8, 128)
    assert cost.floor_seconds(half, H100) == pytest.approx(cost.floor_seconds(whole, H100) / 2, rel=1e-3)
    with pytest.raises(ValueError, match="A100 has no fp8"):
        cost.floor_seconds(half, DEVICES["A100"])


def test_cascade_reads_the_prefix_once() -> None:
    apart = cost.paged_decode([1010, 1020], 32, 8, 128)
    shared = cost.cascade(1000, [10, 20], 32, 8, 128)
    assert apart.bytes - shared.bytes == 2 * 1000 * 8 * 128 * 2
    assert shared.flops == apart.flops


def test_row_kernels_by_hand() -> None:
    assert cost.rmsnorm(3, 10).bytes == 2 * (3 * 10 + 3 * 10 + 10)
    assert cost.rmsnorm(3, 10, residual=True).bytes == 2 * (4 * 3 * 10 + 10)
    assert cost.silu_mul(3, 10).bytes == 2 * 3 * (20 + 10)
    assert cost.store_kv(1, 4, 2, 64).bytes == 64 * 2 * (4 + 4 + 2 * 2 * 2) + 4 * 64 + 16
    assert cost.store_kv(1, 4, 2, 64, kv_itemsize=1).bytes == 64 * (2 * 8 + 2 * 2 * 3) + 4 * 64 + 16
    assert cost.merge_states(2, 1, 1, 64).bytes == 2 * (256 + 4) + 128 + 4
    assert cost.sample(1, 1000).bytes == 4044
    assert cost.relocate(1, 1, 1, 64).bytes == 4 * 128 + 256 + 16
    assert cost.copy_pages(1, 5, 16, 2, 1, 64).bytes == (5 + 16) * 2 * 64 * 2
    assert (cost.rmsnorm(1, 4) + cost.silu_mul(1, 4)).bytes == cost.rmsnorm(1, 4).bytes + cost.silu_mul(
        1, 4
    ).bytes


def test_the_sources_prefill_examples() -> None:
    """Linear and attention FLOP and TTFT at 50% of 989 TFLOP/s, for 8,192 and 65,536 tokens of a 32-layer model."""
    a = cost.prefill_estimate(8192, 32, 4096)
    assert (a.linear, a.attention, a.flops) == (105553116266496, 35184372088832, 140737488355328)
    assert a.attention_share == 0.25
    assert a.seconds(H100.bf16_flops, 0.5) == pytest.approx(0.28460563873676037)
    b = cost.prefill_estimate(65536, 32, 4096)
    assert (b.linear, b.attention, b.flops) == (844424930131968, 2251799813685248, 3096224743817216)
    assert b.attention_share == pytest.approx(0.7272727272727273)
    assert b.seconds(H100.bf16_flops, 0.5) == pytest.approx(6.261324052208728)


def test_the_sources_compaction() -> None:
    """96 Ki tokens less 30, 25 and 17 Ki on a 70B model with 8 KV heads, at 50% of 989 TFLOP/s."""
    raw = 98_304
    compact = raw - 30_720 - 25_600 - 17_408
    assert compact == 24_576
    token = cost.kv_bytes_per_token(80, 8, 128)
    assert (raw * token / 2**30, compact * token / 2**30) == (30.0, 7.5)
    seconds = [
        cost.prefill_estimate(tokens, 80, 8192, parameters=70_000_000_000).seconds(989e12, 0.5)
        for tokens in (raw, compact)
    ]
    assert seconds == pytest.approx([79.06027887554912, 10.159629411521617])
    assert seconds[0] / seconds[1] == pytest.approx(7.781807354694465)


def test_the_sources_rebuild_from_a_checkpoint() -> None:
    """114,688 tokens, or a checkpoint of 1,536 and a tail of 2,048, on 8 H100 at 45% of their dense peak."""
    raw, rebuilt = 114_688, 1_536 + 2_048
    assert (rebuilt, raw / rebuilt) == (3584, 32.0)
    seconds = [cost.prefill_estimate(tokens, 80, 8192).seconds(8 * 989e12, 0.45) for tokens in (raw, rebuilt)]
    assert seconds == pytest.approx([13.834996327481406, 0.13916060759087742])
    assert seconds[0] / seconds[1] == pytest.approx(99.41747572815534)
    token = cost.kv_bytes_per_token(80, 8, 128)
    assert (raw * token, rebuilt * token) == (37_580_963_840, 1_174_405_120)


def test_the_sources_crossover() -> None:
    assert cost.attention_crossover(4096) == 24576
    at = cost.prefill_estimate(24576, 1, 4096)
    assert at.linear == at.attention


def test_the_sources_kv_bytes() -> None:
    assert cost.kv_bytes_per_token(80, 64, 128) == 2621440
    assert cost.kv_bytes_per_token(80, 8, 128) == 327680
    assert cost.kv_bytes_per_token(80, 8, 128) * 131072 == 42949672960
    assert cost.kv_bytes_per_token(80, 64, 128) * 131072 == 343597383680
    assert cost.latent_kv_bytes_per_token(60, 512, 64) == 69120
    assert cost.latent_kv_bytes_per_token(80, 512, 64) == 92160


def test_reference_cost_and_configs_need_no_triton() -> None:
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import deeproot.kernels.reference, deeproot.kernels.cost, deeproot.kernels.configs, deeproot.kernels.philox"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
