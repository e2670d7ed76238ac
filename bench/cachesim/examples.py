"""The worked examples, computed by the product's own functions from their inputs alone.

What they should come to stands beside the inputs in `bench/data/worked_examples.json`, and is only compared.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeproot.engine.logprobs import logprobs_of
from deeproot.kernels.cost import (
    attention_crossover,
    kv_bytes_per_token,
    latent_kv_bytes_per_token,
    prefill_estimate,
)
from deeproot.runtime.context.budget import Budget
from deeproot.runtime.context.compaction.estimates import (
    compression_ratio,
    constraints_kept,
    reductions,
    staged_tokens,
    wasted_turns,
)
from deeproot.runtime.context.cost_oracle import TokenCountOracle
from deeproot.runtime.context.invalidation.price import Option, break_even_turns
from deeproot.runtime.context.prefix_cost import Prices, prefix_cost
from deeproot.runtime.context.report import Variants
from deeproot.runtime.context.tokenizer import TokenIds

EXAMPLES = Path(__file__).parents[1] / "data" / "worked_examples.json"
Inputs = Mapping[str, Any]
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """`computed`: None for an example that has nothing to compute; `why` says so then."""

    name: str
    what: str
    expected: Mapping[str, Any]
    computed: Values | None
    why: str = ""
    source_says: str = ""

    @property
    def agrees(self) -> bool:
        """Whether everything that is expected was computed, to 12 digits."""
        return self.computed is None or _same(self.computed, self.expected)


def compute_examples(name: str) -> list[Example]:
    """One example, or `all`. Raises ValueError if there is none of that name."""
    entries = {entry["id"]: entry for entry in json.loads(EXAMPLES.read_text(encoding="utf-8"))}
    if name != "all" and name not in entries:
        raise ValueError(
            f"--example {name}: there is none of that name; give all, or one of {', '.join(entries)}"
        )
    return [_example(entry) for key, entry in entries.items() if name in ("all", key)]


def _example(entry: Mapping[str, Any]) -> Example:
    compute = _COMPUTED.get(entry["id"])
    return Example(
        name=entry["id"],
        what=entry["what"],
        expected=entry["value"],
        computed=None if compute is None else compute(entry["inputs"]),
        why=_NOT_COMPUTED.get(entry["id"], ""),
        source_says=entry.get("source_says", ""),
    )


def layout_prompts(inputs: Inputs, *, timestamp: bool) -> list[TokenIds]:
    """The calls of the trajectory: the leaf changes each turn, the trunk `trunk_changes` times; token ids tell versions
    apart. timestamp: with ten tokens at the start that change each turn, in the leaf's stead."""
    turns, stamp = inputs["turns"], 10 if timestamp else 0
    every = -(-turns // (inputs["trunk_changes"] + 1))
    prompts = []
    for turn in range(turns):
        parts = [
            np.full(stamp, 3 * turns + turn),
            np.full(inputs["root"], 0),
            np.full(inputs["trunk"], 1 + turn // every),
            np.full(inputs["leaf"] - stamp, turns + turn),
        ]
        prompts.append(np.concatenate(parts).astype(np.int32))
    return prompts


def _layout_cost(inputs: Inputs) -> Values:
    prices = _prices(inputs)
    stable, unstable = (prefix_cost(layout_prompts(inputs, timestamp=stamped)) for stamped in (False, True))
    premium = Prices(prices.full, prices.cached, 1.25)
    return {
        "total_tokens": stable.total_tokens,
        "prefill_unstable": unstable.computed,
        "prefill_stable": stable.computed,
        "cached_stable": stable.cached,
        "hit_rate": stable.hit_rate,
        "cost_unstable": unstable.dollars(prices),
        "cost_stable": stable.dollars(prices),
        "cost_ratio": unstable.dollars(prices) / stable.dollars(prices),
        "prefill_ratio": unstable.computed / stable.computed,
        "cost_stable_with_write_premium_1_25": stable.dollars(premium),
    }


def _fleet_cost(inputs: Inputs) -> Values:
    prices = _prices(inputs)
    same = [np.zeros(inputs["tokens"], np.int32)] * inputs["turns"]
    other = [np.full(inputs["tokens"], turn, np.int32) for turn in range(inputs["turns"])]
    return {
        "unstable": prefix_cost(other).dollars(prices),
        "floor_with_cold_first_call": prefix_cost(same).dollars(prices),
    }


def _softmax_dilution(inputs: Inputs) -> Values:
    weights, background = [], 0.0
    for n in inputs["n"]:
        logits = torch.full((2, n), float(inputs["z_noise"]), dtype=torch.float64)
        logits[0, 0] = inputs["z_target"]
        _, chosen, _, _ = logprobs_of(logits, torch.tensor([0, 0]), 1)
        weights.append(float(chosen[0].exp()))
        background = float(
            (inputs["z_noise"] - chosen[1]).exp()
        )  # of n logits that are all noise, as the source counts
    return {"weight": weights, "ratio": weights[0] / weights[-1], "background_sum": background}


def _prefill(inputs: Inputs) -> Values:
    made = prefill_estimate(inputs["M"], inputs["layers"], inputs["d_model"])
    return {
        "flops_linear": made.linear,
        "flops_attention": made.attention,
        "flops": made.flops,
        "attention_share": made.attention_share,
        "ttft_s": made.seconds(inputs["peak_tflops"] * 1e12, inputs["mfu"]),
    }


def _kv_bytes(inputs: Inputs) -> Values:
    layers, dim = inputs["layers"], inputs["head_dim"]
    mha, gqa = (kv_bytes_per_token(layers, heads, dim) for heads in (64, 8))
    return {
        "mha_64_heads": mha,
        "gqa_8_heads": gqa,
        "mla_512_plus_64_60_layers": latent_kv_bytes_per_token(60, 512, 64),
        "mla_512_plus_64_80_layers": latent_kv_bytes_per_token(layers, 512, 64),
        "gqa_128k_bytes": gqa * 128 * 1024,
        "mha_128k_bytes": mha * 128 * 1024,
    }


def _compaction_roofline(inputs: Inputs) -> Values:
    compact = inputs["raw"] - sum(inputs["removed"])
    token = kv_bytes_per_token(inputs["layers"], inputs["kv_heads"], inputs["head_dim"])
    raw_s, compact_s = (
        prefill_estimate(tokens, inputs["layers"], inputs["d_model"], int(inputs["params"])).seconds(
            inputs["tflops"] * 1e12, 1.0
        )
        for tokens in (inputs["raw"], compact)
    )
    return {
        "compact": compact,
        "kv_gib_raw": inputs["raw"] * token / 2**30,
        "kv_gib_compact": compact * token / 2**30,
        "prefill_s_raw": raw_s,
        "prefill_s_compact": compact_s,
        "ratio": raw_s / compact_s,
    }


def _checkpoint_rebuild(inputs: Inputs) -> Values:
    rebuilt = inputs["checkpoint"] + inputs["tail"]
    token = kv_bytes_per_token(inputs["layers"], 8, 128)
    raw_s, rebuilt_s = (
        prefill_estimate(tokens, inputs["layers"], inputs["d_model"]).seconds(
            8 * inputs["peak_tflops_dense"] * 1e12, 0.45
        )
        for tokens in (inputs["raw"], rebuilt)
    )
    return {
        "tokens": rebuilt,
        "ratio": compression_ratio(inputs["raw"], rebuilt),
        "prefill_s_raw": raw_s,
        "prefill_s": rebuilt_s,
        "speedup": raw_s / rebuilt_s,
        "kv_gb_raw": inputs["raw"] * token / 1e9,
        "kv_gb": rebuilt * token / 1e9,
    }


def _invalidate(inputs: Inputs) -> Values:
    """Stale tokens overwritten in place, taken out, or left with a note appended."""
    old = np.arange(inputs["context"], dtype=np.int32)
    start, end = inputs["position"], inputs["position"] + inputs["stale"]
    in_place = old.copy()
    in_place[start:end] += inputs["context"]
    removed = np.delete(old, np.arange(start, end))
    appended = np.concatenate((old, np.arange(inputs["delta"], dtype=np.int32)))
    flops_a_token = prefill_estimate(1, 0, 0, int(inputs["params"])).flops
    oracle = TokenCountOracle(_prices(inputs), inputs["tflops"] * 1e12 / flops_a_token)
    hard, gone, noted = (oracle.price(old, new) for new in (in_place, removed, appended))
    delta = inputs["delta"]
    evict = Option(int(removed.size) + delta, gone.tokens_recomputed + delta)
    keep = Option(int(appended.size), noted.tokens_recomputed)
    return {
        "recompute_tokens_in_place": hard.tokens_recomputed,
        "recompute_tokens_after_removal": gone.tokens_recomputed,
        "ratio_in_place": hard.tokens_recomputed / noted.tokens_recomputed,
        "ratio_after_removal": gone.tokens_recomputed / noted.tokens_recomputed,
        "s_hard": hard.seconds,
        "s_tombstone": noted.seconds,
        "break_even_turns": break_even_turns(evict, keep, _prices(inputs)),
    }


def _two_policies(inputs: Inputs) -> Values:
    raw, a, b = inputs["turns"] * inputs["tokens_per_turn"], inputs["A"], inputs["B"]
    lost = inputs["turns_lost_per_stale"]
    return {
        "A_staged": staged_tokens(raw, a["C_r"]),
        "A_constraints_kept": constraints_kept(a["loss_per_compaction"], a["compactions"]),
        "A_wasted_turns": wasted_turns(inputs["turns"], a["stale"], lost),
        "B_staged": staged_tokens(raw, b["C_r"]),
        "B_wasted_turns": wasted_turns(inputs["turns"], b["stale"], lost),
        "B_real_C_r_at_14500": compression_ratio(raw, 14_500),
    }


def _cascade(inputs: Inputs) -> Values:
    stages: Sequence[int] = inputs["stages"]
    return {
        "after_filter": reductions(stages)[0],
        "after_skeleton_cumulative": reductions(stages)[1],
        "skeleton_alone": reductions(stages[1:])[0],
        "total_ratio": compression_ratio(stages[0], stages[-1]),
    }


def _cache_keys(inputs: Inputs) -> Values:
    return {"keys": Variants(tuple(f"condition {i}" for i in range(inputs["n"]))).keys}


def _prices(inputs: Inputs) -> Prices:
    return Prices(inputs["price"], inputs["price_cached"])


_COMPUTED: Mapping[str, Callable[[Inputs], Values]] = {
    "layout_cost": _layout_cost,
    "fleet_cost": _fleet_cost,
    "softmax_dilution": _softmax_dilution,
    "prefill_A": _prefill,
    "prefill_B": _prefill,
    "prefill_crossover": lambda inputs: {"M": attention_crossover(inputs["d_model"])},
    "kv_bytes_per_token": _kv_bytes,
    "compaction_roofline": _compaction_roofline,
    "checkpoint_rebuild": _checkpoint_rebuild,
    "invalidate_850": _invalidate,
    "two_policies": _two_policies,
    "constraint_retention": lambda inputs: {"one": constraints_kept(inputs["lam"], inputs["k"])},
    "cascade": _cascade,
    "cache_keys": _cache_keys,
    "watermarks": lambda inputs: {"high": Budget(100).high, "low": Budget(100).low},
}
_NOT_COMPUTED: Mapping[str, str] = {
    "strategy_table": "the source's illustration, with no inputs to compute it from",
    "invalidation_example": "says what a note must name; there is nothing to compute",
}


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, Mapping):
        return (
            isinstance(one, Mapping)
            and one.keys() == other.keys()
            and all(_same(one[k], other[k]) for k in other)
        )
    if isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return isclose(one, other, rel_tol=1e-12)
