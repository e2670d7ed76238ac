"""What each form of a model's weights costs in exactness: perplexity of a text, and how far predictions are from float32's.

The text is cut into windows that are computed apart, in chunks of many tokens, as a prompt is, and in chunks of few, which
are multiplied as a decoding token's row is. All forms are made of the values that the model's file means, so that what the
file's own quantisation has lost is in none of the figures. Counts, not times: the machine does not matter.

    python -m deeproot.bench.perplexity --model MODEL --out bench/results/perplexity_cpu.json
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from deeproot.bench.fp8_kv import PAGE, Difference, compare
from deeproot.engine.batch import Int32Array, one_sequence
from deeproot.engine.kv_pool import KVPool
from deeproot.engine.loading import faster_model, load_model, make_attention
from deeproot.engine.quantization import Quantization
from deeproot.engine.runner import Runner
from deeproot.runtime.chat.assets import ModelAssets

TEXT = Path(__file__).parent / "data" / "english.md"
MANY, FEW = 256, 16
"""Tokens of a chunk."""


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    quantization: Quantization
    compiled: bool
    """By the C++ decoder; else by torch."""
    chunk: int


FORMS = (
    Form("bfloat16, torch", "none", False, MANY),
    Form("bfloat16", "none", True, MANY),
    Form("bfloat16, decoding", "none", True, FEW),
    Form("int8", "int8", True, MANY),
    Form("int8, decoding", "int8", True, FEW),
    Form("as the file has them", "gguf", True, MANY),
    Form("as the file has them, decoding", "gguf", True, FEW),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Of a form, over all windows."""

    name: str
    perplexity: float
    over_float32: float
    """Perplexity over float32's, less 1."""
    divergence: float
    """Kullback-Leibler divergence from float32's predictions, mean, in nats."""
    same_best: float
    """Share of positions at which the same token is likeliest."""


def make_runner(model: Path, dtype: str, form: Form | None, num_tokens: int) -> Runner:
    """form: None is torch's, with dense weights."""
    loaded = load_model(model, dtype=dtype, quantization=form.quantization if form else "none")
    pool = KVPool(loaded.config.kv_layout(PAGE, loaded.dtype), -(-num_tokens // PAGE))
    compiled = form is not None and form.compiled
    attention = make_attention(loaded.config, pool, "cpu" if compiled else "torch", loaded.dtype)
    return Runner(faster_model(loaded, attention) if compiled else loaded.model, pool, attention)


def logits(runner: Runner, ids: Int32Array, chunk: int) -> torch.Tensor:
    """Of every position, `[T, vocab_size]`."""
    pages = np.arange(runner.pool.num_pages, dtype=np.int32)
    starts = range(0, len(ids), chunk)
    return torch.cat([runner.logits(one_sequence(ids[: at + chunk], at, pages, PAGE)) for at in starts])


def row_of(name: str, differences: Sequence[Difference]) -> Row:
    """differences: of windows of one length, from float32."""
    count = len(differences)
    loss, exact = (
        sum(getattr(window, field) for window in differences) / count for field in ("loss", "other_loss")
    )
    return Row(
        name,
        math.exp(loss),
        math.expm1(loss - exact),
        sum(window.divergence for window in differences) / count,
        sum(window.same_best for window in differences) / count,
    )


def run(model: Path, ids: Int32Array, window: int, forms: Sequence[Form] = FORMS) -> dict[str, object]:
    """All figures. ids: the text's. Raises ValueError for a text that is shorter than a window."""
    windows = [ids[at : at + window] for at in range(0, len(ids) - window + 1, window)]
    if not windows:
        raise ValueError(f"the text has {len(ids)} tokens, less than a window of {window}")
    exact = make_runner(model, "float32", None, window)
    runners = {
        form.quantization: make_runner(model, "bfloat16", form, window) for form in forms if form.compiled
    }
    torchs = make_runner(model, "bfloat16", None, window)
    found: dict[str, list[Difference]] = {form.name: [] for form in forms}
    losses = []
    for part in windows:
        wanted = logits(exact, part, MANY)
        for form in forms:
            runner = runners[form.quantization] if form.compiled else torchs
            found[form.name].append(compare(logits(runner, part, form.chunk), wanted, part))
        losses.append(next(iter(found.values()))[-1].other_loss)
    return {
        "model": model.name,
        "tokens": len(windows) * window,
        "window": window,
        "float32 perplexity": math.exp(sum(losses) / len(losses)),
        "forms": [asdict(row_of(name, differences)) for name, differences in found.items()],
    }


def table(record: dict[str, object]) -> list[str]:
    """Markdown."""
    forms = record["forms"]
    assert isinstance(forms, list)
    lines = ["| weights | perplexity | over float32 | divergence, nats | same likeliest token |"]
    lines += ["|---|---:|---:|---:|---:|", f"| float32, torch | {record['float32 perplexity']:.4f} | | | |"]
    for row in forms:
        lines.append(
            f"| {row['name']} | {row['perplexity']:.4f} | {row['over_float32']:+.3%} | {row['divergence']:.1e} | "
            f"{row['same_best']:.2%} |"
        )
    return lines


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file in Q4_0, Q4_1 or Q8_0")
    parser.add_argument("--text", type=Path, default=TEXT, help="a file of plain text")
    parser.add_argument("--window", type=int, default=512, help="tokens that are computed together")
    parser.add_argument("--out", type=Path, help="write JSON here")
    args = parser.parse_args(argv)
    tokenizer = ModelAssets.load(args.model).tokenizer
    ids = tokenizer.encode(args.text.read_text(encoding="utf-8"), parse_special=False)
    record = run(args.model, ids, args.window)
    print("\n".join(table(record)))
    if args.out:
        args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
