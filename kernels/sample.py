"""Sampling of one token a row: temperature, top-k, top-p and min-p as thresholds on the logit, then Gumbel-max.

The noise comes from a counter-based generator keyed by (seed, position), so a draw depends on nothing else: not on the
batch, its order or the device. `philox.py` is the same generator in numpy.
"""

import torch
import triton
import triton.language as tl

from deeproot.kernels.launch import Launch
from deeproot.kernels.philox import LANES


@triton.jit
def _key(x):
    """float32 to uint32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, ~bits, bits ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _scaled(line, start, vocabulary, temperature, BLOCK: tl.constexpr):
    v = start + tl.arange(0, BLOCK)
    x = tl.load(line + v, mask=v < vocabulary, other=float("-inf"))
    return v, x.to(tl.float32) / temperature


@triton.jit
def _floor(line, vocabulary, temperature, top, low, wanted, MASS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that the tokens of at least that key, and at least `low`, hold `wanted` or more.

    They hold their number, or with MASS their weight exp(x - top). Two bits of the key a pass, highest first.
    """
    key = tl.full([], 0, tl.uint32)
    for step in tl.range(0, 16):
        bit = tl.full([], 1, tl.uint32) << tl.cast(30 - 2 * step, tl.uint32)
        held1 = tl.zeros([BLOCK], tl.float32)
        held2 = tl.zeros([BLOCK], tl.float32)
        held3 = tl.zeros([BLOCK], tl.float32)
        for start in tl.range(0, vocabulary, BLOCK):
            v, x = _scaled(line, start, vocabulary, temperature, BLOCK)
            k = _key(x)
            if MASS:
                weight = tl.exp2((x - top) * 1.4426950408889634)
            else:
                weight = tl.where(v < vocabulary, 1.0, 0.0)
            weight = tl.where(k >= low, weight, 0.0)
            held1 += tl.where(k >= key + bit, weight, 0.0)
            held2 += tl.where(k >= key + 2 * bit, weight, 0.0)
            held3 += tl.where(k >= key + 3 * bit, weight, 0.0)
        if tl.sum(held3, 0) >= wanted:
            key += 3 * bit
        elif tl.sum(held2, 0) >= wanted:
            key += 2 * bit
        elif tl.sum(held1, 0) >= wanted:
            key += bit
    return key


@triton.jit
def _weight_from(line, vocabulary, temperature, top, low, BLOCK: tl.constexpr):
    """Sum of exp(x - top) over the tokens of a key of at least `low`."""
    held = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, vocabulary, BLOCK):
        _, x = _scaled(line, start, vocabulary, temperature, BLOCK)
        held += tl.where(_key(x) >= low, tl.exp2((x - top) * 1.4426950408889634), 0.0)
    return tl.sum(held, 0)


@triton.jit
def sample_kernel(
    logits_ptr,
    out_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    positions_ptr,
    vocabulary,
    stride,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
):
    row = tl.program_id(0)
    line = logits_ptr + row.to(tl.int64) * stride
    asked = tl.load(temperature_ptr + row)
    drawn = asked > 0.0
    temperature = tl.where(drawn, asked, 1.0)
    low = tl.full([], 0, tl.uint32)
    if drawn:
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        highest = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in tl.range(0, vocabulary, BLOCK):
            _, x = _scaled(line, start, vocabulary, temperature, BLOCK)
            highest = tl.maximum(highest, x)
        top = tl.max(highest, 0)
        if (top_k > 0) & (top_k < vocabulary):
            low = _floor(line, vocabulary, temperature, top, low, top_k.to(tl.float32), False, BLOCK)
        if top_p < 1.0:
            wanted = top_p * _weight_from(line, vocabulary, temperature, top, low, BLOCK)
            low = tl.maximum(low, _floor(line, vocabulary, temperature, top, low, wanted, True, BLOCK))
        if min_p > 0.0:
            low = tl.maximum(low, _key(top + tl.log(min_p)))

    seed = tl.load(seeds_ptr + row)
    position = tl.load(positions_ptr + row)
    lane = tl.arange(0, LANES)
    best = tl.full([LANES], float("-inf"), tl.float32)
    token = tl.zeros([LANES], tl.int32)
    for start in tl.range(0, vocabulary, 4 * LANES):
        counter = (start // 4 + lane).to(tl.uint32)
        low_word = position.to(tl.uint32)
        high_word = (position >> 32).to(tl.uint32)
        words = tl.philox(seed, counter, low_word, high_word, tl.full([], 0, tl.uint32))
        for part in tl.static_range(4):
            v, x = _scaled(line, start + part * LANES, vocabulary, temperature, LANES)
            # 23 bits: exact in float32, and neither 0 nor 1
            uniform = ((words[part] >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
            noise = -tl.log(-tl.log(uniform))
            score = tl.where(drawn, x + noise, x)
            score = tl.where((v < vocabulary) & (_key(x) >= low), score, float("-inf"))
            better = score > best
            best = tl.where(better, score, best)
            token = tl.where(better, v, token)
    highest_score = tl.max(best, 0)
    first = tl.min(tl.where(best == highest_score, token, 2147483647), 0)
    tl.store(out_ptr + row, first.to(tl.int64))


def sample_launch(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    out: torch.Tensor,
) -> Launch:
    """The launch that picks one token a row of logits `[rows, vocabulary]` into out, int64 `[rows]`.

    temperature float32 (0: the highest logit, the lowest index of equals), top_k int32 (0: off), top_p float32 (1:
    off, over what top-k keeps), min_p float32 (0: off, relative to the likeliest token), seeds int64 (64 bits of
    seed), positions int64 (index of the token in its sequence), all `[rows]`. Tokens that equal a threshold are kept.
    Raises ValueError for tensors that do not fit.
    """
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1:
        raise ValueError(f"logits: a row must lie in one piece, got strides {logits.stride()}")
    wanted = {"top_k": torch.int32, "seeds": torch.int64, "positions": torch.int64, "out": torch.int64}
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given |= {"seeds": seeds, "positions": positions, "out": out}
    for name, tensor in given.items():
        dtype = wanted.get(name, torch.float32)
        if tensor.shape != (rows,) or tensor.dtype != dtype:
            raise ValueError(f"{name} must be [{rows}] {dtype}, got {tuple(tensor.shape)} {tensor.dtype}")
    args = {
        "logits_ptr": logits,
        "out_ptr": out,
        "temperature_ptr": temperature,
        "top_k_ptr": top_k,
        "top_p_ptr": top_p,
        "min_p_ptr": min_p,
        "seeds_ptr": seeds,
        "positions_ptr": positions,
        "vocabulary": vocabulary,
        "stride": logits.stride(0),
        "BLOCK": 4 * LANES,
        "LANES": LANES,
    }
    return Launch(sample_kernel, (rows,), args, num_warps=8)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """One token a row, int64 `[rows]`; see `sample_launch`."""
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    sample_launch(logits, temperature, top_k, top_p, min_p, seeds, positions, out).run()
    return out
