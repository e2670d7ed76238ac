"""What a KV cache in e4m3 costs in exactness: a model's logits with it against those with K and V in bfloat16.

Both runs read K and V back from the cache, token by token of a text as in service (chunks of a prompt). Float32
throughout is the yardstick: how far bfloat16 itself is from it. Errors, not times: the machine does not matter much.

    python -m deeproot.bench.fp8_kv --model MODEL --text FILE --out bench/results/fp8_kv.json
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from deeproot.engine.batch import Int32Array, one_sequence
from deeproot.engine.kv_pool import FP8, KVPool
from deeproot.engine.kv_scales import HEADROOM, KVScales, measure_kv_scales
from deeproot.engine.loading import LoadedModel, load_model, make_attention
from deeproot.engine.runner import Runner
from deeproot.runtime.chat.assets import ModelAssets

PAGE = 64
CHUNK = 64


@dataclass(frozen=True, slots=True)
class Difference:
    """Of the logits of two runs over the same tokens."""

    relative_error: float
    """Norm of the difference over the norm of the other."""
    same_best: float
    """Share of positions at which the same token is likeliest."""
    divergence: float
    """Kullback-Leibler divergence from the other's distribution, mean, in nats."""
    loss: float
    """Mean negative log likelihood of the text, in nats a token."""
    other_loss: float


def compare(logits: torch.Tensor, other: torch.Tensor, ids: Int32Array) -> Difference:
    """logits, other: `[T, vocab_size]` float32; ids: the tokens at these positions."""
    mine, wanted = logits.log_softmax(-1), other.log_softmax(-1)
    following = torch.from_numpy(ids[1:]).long()[:, None]
    return Difference(
        relative_error=float((logits - other).norm() / other.norm()),
        same_best=float((logits.argmax(-1) == other.argmax(-1)).float().mean()),
        divergence=float((wanted.exp() * (wanted - mine)).sum(-1).mean()),
        loss=float(-mine[:-1].gather(1, following).mean()),
        other_loss=float(-wanted[:-1].gather(1, following).mean()),
    )


def all_logits(loaded: LoadedModel, ids: Int32Array, scales: KVScales | None) -> torch.Tensor:
    """Logits of every position, computed in chunks through a cache. scales: None keeps K and V in the model's dtype."""
    layout = loaded.config.kv_layout(PAGE, loaded.dtype if scales is None else FP8)
    pool = KVPool(layout, -(-len(ids) // PAGE), loaded.device, scales)
    runner = Runner(
        loaded.model, pool, make_attention(loaded.config, pool, dtype=loaded.dtype), loaded.device
    )
    pages = pool.alloc(pool.num_pages)
    starts = range(0, len(ids), CHUNK)
    return torch.cat(
        [runner.logits(one_sequence(ids[: start + CHUNK], start, pages, PAGE)) for start in starts]
    )


def largest_share(loaded: LoadedModel, ids: Int32Array, scales: KVScales) -> float:
    """How near K and V of the text come to what is clamped: 1 is the edge."""
    measured = measure_kv_scales(loaded.model, loaded.dtype, loaded.device, ids)
    return max(float((text / HEADROOM / scale).max()) for text, scale in zip(measured, scales, strict=True))


def run(model: Path, text: str, num_tokens: int) -> dict[str, object]:
    """All figures. Raises ValueError for a text that is too short."""
    ids = ModelAssets.load(model).tokenizer.encode(text, parse_special=False)[:num_tokens]
    if len(ids) < num_tokens:
        raise ValueError(f"the text has {len(ids)} tokens, {num_tokens} were asked for")
    exact = load_model(model, dtype="float32")
    wanted = all_logits(exact, ids, None)
    rounded = load_model(model, dtype="bfloat16")
    bf16 = all_logits(rounded, ids, None)
    scales = measure_kv_scales(rounded.model, rounded.dtype, rounded.device)
    fp8 = all_logits(rounded, ids, scales)
    only_fp8 = all_logits(exact, ids, scales)
    return {
        "model": model.name,
        "tokens": len(ids),
        "largest K or V over what is clamped": largest_share(rounded, ids, scales),
        "differences": {
            "bf16 model, e4m3 cache against bf16 cache": asdict(compare(fp8, bf16, ids)),
            "bf16 model, bf16 cache against all float32": asdict(compare(bf16, wanted, ids)),
            "bf16 model, e4m3 cache against all float32": asdict(compare(fp8, wanted, ids)),
            "float32 model, e4m3 cache against all float32": asdict(compare(only_fp8, wanted, ids)),
        },
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True, help="a file of plain text")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--out", type=Path, help="write JSON here")
    args = parser.parse_args(argv)
    record = run(args.model, args.text.read_text(encoding="utf-8"), args.tokens)
    text = json.dumps(record, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
